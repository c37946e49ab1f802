"""Recognition of single images: an image file becomes ink as CROHME renders it (data/normalize_image.py), then LaTeX.

    import hmerbench

    recognizer = hmerbench.load()
    print(recognizer("formula.png").latex)  # or its bytes, an array, a PIL image; a folder or a list: all of them

On the command line: `hmerbench recognize formula.png`.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from html import escape
from itertools import islice
from pathlib import Path
from typing import IO, Any, overload

import cv2
import numpy as np
from PIL import Image, ImageOps

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.normalize_image import Prepared, prepare
from hmerbench.benchmarks.data.pictures import gray_of, stretched
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.environment import best_device
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.recognition.attention import TracedAttention, trace
from hmerbench.benchmarks.recognition.confidence import DOUBTFUL, Calibration, Reading, readings
from hmerbench.benchmarks.recognition.default_weights import default_weights
from hmerbench.benchmarks.recognition.predict import SCORES, ConfiguredSearcher
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_plain
from hmerbench.evaluation.stores import ENDINGS
from hmerbench.evaluation.symlg import Unconverted
from hmerbench.evaluation.symlg.mathml import to_mathml
from hmerbench.models.authors_checkpoint import import_lightning
from hmerbench.models.files import one_line
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.network import Network
from hmerbench.models.weights import load_weights

FITTED = Path(__file__).with_name("confidence.json")  # the numbers of confidence.py's regression
SHOWN = (".prepared.png", ".attention.png")  # that `recognize` writes beside pictures
BATCH = 64  # pictures that are prepared before they are read
Picture = Path | bytes | np.ndarray  # a file, its content, or a gray image (H, W) uint8
Given = Path | str | bytes | np.ndarray | Image.Image | IO[bytes]


@cache
def calibration() -> Calibration:
    fitted = read_plain(FITTED)
    return Calibration(fitted["intercept"], fitted["weights"])


@dataclass(frozen=True)
class Candidate(Reading):
    """A reading of the search."""

    @property
    def mathml(self) -> str:
        """The tokens as MathML; empty if their LaTeX is incomplete."""
        try:
            return to_mathml(self.tokens)
        except Unconverted:
            return ""


@dataclass(frozen=True, repr=False)
class Recognition:
    """The distinct candidates for an image, best first, and the ink they were read from: `ink` is (H, W) uint8, white
    on black, at the scale of CROHME's images, and `prepared` tells what was done to the picture to get it."""

    name: str
    ink: np.ndarray
    nbest: tuple[Candidate, ...]
    prepared: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.nbest[0].tokens

    @property
    def latex(self) -> str:
        return self.nbest[0].latex

    @property
    def mathml(self) -> str:
        """MathML of the best candidate; empty if its LaTeX is incomplete."""
        return self.nbest[0].mathml

    @property
    def confidence(self) -> float:
        return self.nbest[0].confidence

    @property
    def doubtful(self) -> bool:
        """Whether it is more probably wrong than right; the image may show no expression at all."""
        return self.confidence < DOUBTFUL

    def to_dict(self, count: int = 5) -> dict[str, Any]:
        """Everything but the ink as plain data, with the best `count` candidates."""
        best = self.nbest[0]
        return {
            "image": self.name,
            "prepared": list(self.prepared),
            "latex": best.latex,
            "mathml": best.mathml,
            "score": best.score,
            "confidence": round(best.confidence, 4),
            "doubtful": self.doubtful,
            "nbest": [
                {"latex": c.latex, "confidence": round(c.confidence, 4), **{key: getattr(c, key) for key in SCORES}}
                for c in self.nbest[:count]
            ],
        }

    def __repr__(self) -> str:
        latex = self.latex if len(self.latex) <= 60 else self.latex[:59] + "…"
        return f"<{self.name}: {latex} ({self.confidence:.0%}{', doubtful' if self.doubtful else ''})>"

    def _repr_html_(self) -> str:
        """The ink, the best candidate as it is typeset, and its LaTeX, for notebooks."""
        png = base64.b64encode(cv2.imencode(".png", 255 - self.ink)[1].tobytes()).decode()
        doubt = " · <b>doubtful</b>" if self.doubtful else ""
        return (
            f'<figure style="margin:0"><img alt="{escape(self.name)}" src="data:image/png;base64,{png}" '
            f'style="max-width:100%;max-height:12em;background:#fff"><div style="font-size:150%">{self.mathml}</div>'
            f"<figcaption><code>{escape(self.latex)}</code> · {self.confidence:.0%}{doubt}</figcaption></figure>"
        )


class Recognizer:
    """A trained network with the settings it was trained with."""

    def __init__(self, model: Network, config: Config):
        self.device = best_device()
        self.model, self.config = model.to(self.device).eval(), config

    @cached_property
    def _read(self) -> ConfiguredSearcher:
        return ConfiguredSearcher(self.model, self.config, self.device)

    @property
    def name(self) -> str:
        """Which network this is, for people: recipe, preset, seed and number of parameters."""
        config, size = self.config, sum(parameter.numel() for parameter in self.model.parameters())
        return f"{config.recipe}, {config.preset}, seed {config.seed} ({size / 1e6:.1f} M parameters)"

    @property
    def calibrated(self) -> bool:
        """Whether it was trained on CROHME alone, as the network was that confidences were fitted to."""
        return self.config.data.name in ("", "crohme")  # a checkpoint of CoMER's authors does not name its data

    @classmethod
    def load(cls, weights: Path | str | None = None, fast: bool = False) -> "Recognizer":
        """Load a run folder, a weights file in one, or a Lightning checkpoint (.ckpt) of CoMER's authors; by default,
        the best committed run, and if it is to be `fast` the best of a smaller network.

        Raises UserError or CheckpointError if the weights cannot be loaded.
        """
        path = default_weights(fast) if weights is None else Path(weights)
        if path.suffix == ".ckpt":
            model = import_lightning(path)
            recipe = re.sub(r"^[^\w+]|[^\w+., =-]", "_", path.stem)
            return cls(model, Config(recipe=recipe, preset="paper", model=model.settings))
        run = RunFolder(path if path.is_dir() else path.parent)
        file = run.weights_file if path.is_dir() else path
        if not file.exists():
            beside = ", ".join(sorted(found.parent.name for found in run.path.parent.glob("*/best.safetensors")))
            having = f"; of the runs beside it, these have some: {beside}" if beside else ""
            raise UserError(
                f"{file}: there are no such weights; give a run folder with best.safetensors, or a .ckpt file{having}"
            )
        if not (run.path / "config.yaml").exists():
            fix = "so the size of its images is unknown; give a run folder"
            raise UserError(f"{file}: there is no config.yaml beside it, {fix}")
        return cls(load_weights(file, run.settings.model), run.settings)

    def in_float32(self) -> "Recognizer":
        """The same network, read without bf16 where the processor has it: as an exported one computes."""
        return Recognizer(self.model, self.config.changed({"search": {"bf16": False}}))

    @overload
    def __call__(self, images: Given) -> Recognition: ...  # first: a str is a sequence of str, too
    @overload
    def __call__(self, images: Sequence[Given]) -> list[Recognition]: ...
    def __call__(self, images: Any) -> Any:
        """Recognize a picture: the path of a file, its bytes, an array (gray, RGB or RGBA) or a PIL image. Of a folder
        or a list, all, in batches; then the result is a list.

        Raises UserError, of several pictures for all that cannot be read at once: unreadable, without ink, or what the
        network overflows on or finds nothing in.
        """
        read, faults = list[Recognition](), list[UserError]()
        for found in self.each(images):
            (faults if isinstance(found, UserError) else read).append(found)  # pyright: ignore[reportArgumentType]
        if faults:
            more = f" (and {len(faults) - 1} more: {'; '.join(map(str, faults[1:]))[:500]})" if faults[1:] else ""
            raise UserError(f"{faults[0]}{more}")
        return read if is_several(images) else read[0]

    def each(self, images: Any) -> Iterator[Recognition | UserError]:
        """What `__call__` returns, one by one: a picture that cannot be read yields its error, and the others are read.

        Pictures are prepared and read BATCH at a time. Raises UserError for what holds no pictures.
        """
        pictures = iter(pictures_of(images))
        while batch := [*islice(pictures, BATCH)]:
            found = [self._prepared(name, picture) for name, picture in batch]
            inks = {str(n): each.image for n, each in enumerate(found) if isinstance(each, Prepared)}
            read = self._hypotheses(inks)
            for number, ((name, _), each) in enumerate(zip(batch, found, strict=True)):
                hypotheses = each if isinstance(each, UserError) else read[str(number)]
                if isinstance(hypotheses, UserError):
                    yield UserError(str(hypotheses).replace(f"{number}:", f"{name}:", 1))
                    continue
                assert isinstance(each, Prepared)
                try:
                    yield Recognition(name, each.image, self._candidates(name, hypotheses), each.done)
                except UserError as error:
                    yield error

    def _prepared(self, name: str, picture: Picture) -> Prepared | UserError:
        try:
            return prepare(picture, name, self.config.data.max_area)
        except UserError as error:
            return error

    def _hypotheses(self, inks: Mapping[str, np.ndarray]) -> dict[str, list[Hypothesis] | UserError]:
        """Of every image; where the network overflows on one, they are read one by one."""
        samples = [Sample(name, (), ink) for name, ink in inks.items()]
        try:
            return {**self._read(samples)}
        except UserError as error:
            if len(samples) == 1:
                return {samples[0].id: error}
            return {name: found for each in inks.items() for name, found in self._hypotheses(dict([each])).items()}

    def _candidates(self, name: str, hypotheses: Sequence[Hypothesis]) -> tuple[Candidate, ...]:
        search = self.config.search
        found = readings(hypotheses, self.model.vocabulary.words, search.alpha, calibration())
        if not found:
            raise UserError(
                f"{name}: nothing that ends within {search.max_len} symbols was found; is it one expression?"
            )
        return tuple(Candidate(**vars(reading)) for reading in found)

    def __repr__(self) -> str:
        return f"<Recognizer: {self.name}>"

    def attention(self, recognition: Recognition) -> TracedAttention:
        """Attention of the network while it reads the best candidate."""
        return trace(self.model, self.config, recognition.ink, recognition.tokens)


# ------------------------------------------------------------------------------------------------------- what is given


def is_several(given: Any) -> bool:
    """Whether a folder or a list of pictures was given."""
    if isinstance(given, str | Path):
        return Path(given).is_dir()
    one = bytes | bytearray | memoryview | np.ndarray
    return isinstance(given, Iterable) and not isinstance(given, one) and not hasattr(given, "read")


def files(path: Path) -> list[Path]:
    """The pictures in a folder, if there are any; else the path itself."""
    try:
        return [Path(name) for name, _ in pictures_of(path)]
    except UserError:
        return [path]


def others(folder: Path) -> list[Path]:
    """The files of a folder that have no picture's name; hidden ones do not count."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() not in ENDINGS and file.is_file() and file.name[0] != "."
    )


def shown_of(file: Path, given: Sequence[Path]) -> bool:
    """Whether `recognize` wrote a file beside a picture that is given, too."""
    return any(file.name.endswith(end) and Path(str(file).removesuffix(end)) in given for end in SHOWN)


def pictures_of(given: Any, name: str = "image") -> list[tuple[str, Picture]]:
    """Names and pictures, in the order given; a folder's in the order of their names.

    Raises UserError for what is no picture, and for a folder without any.
    """
    if isinstance(given, str | Path):
        path = Path(given)
        if not path.is_dir():
            return [(str(given), path)]
        named = (file for file in path.iterdir() if file.suffix.lower() in ENDINGS and not file.name.endswith(SHOWN))
        found = sorted(filter(Path.is_file, named))
        if not found:
            raise UserError(f"{path}: no pictures in this folder; they end with {', '.join(ENDINGS[:4])}, …")
        return [(str(file), file) for file in found]
    if is_several(given):
        return [pair for number, each in enumerate(given, 1) for pair in pictures_of(each, f"{name} {number}")]
    if isinstance(given, Image.Image):
        name = getattr(given, "filename", "") or name
        try:
            return [(name, gray_of(ImageOps.exif_transpose(given)))]
        except (OSError, ValueError) as error:  # PIL decodes a file only now; some modes it cannot make gray
            raise UserError(f"{name}: damaged image ({one_line(error)}); save it again") from None
    if hasattr(given, "read"):
        name, given = str(getattr(given, "name", name)), given.read()
    if isinstance(given, bytes | bytearray | memoryview):
        return [(name, bytes(given))]
    if isinstance(given, np.ndarray):
        return [(name, gray_array(given, name))]
    raise UserError(
        f"{name}: {type(given).__name__} is no picture; give a path, a folder, bytes, an array, a PIL image or a list"
    )


def gray_array(array: np.ndarray, name: str) -> np.ndarray:
    """An array as a gray image (H, W) uint8: bool, whole numbers of 8 or 16 bits, or floats from 0 to 1; gray, RGB or
    RGBA."""
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if fits and array.dtype == np.uint16 and array.size:
        array = stretched(array)  # cameras and scanners fill 10 or 12 of the 16 bits
    elif fits and array.dtype == bool:
        array = array * np.uint8(255)
    elif fits and array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        array = (array * 255).round().astype(np.uint8)
    if not fits or array.dtype != np.uint8:
        raise UserError(
            f"{name}: an array of {array.dtype} of shape {array.shape} is no picture; give (H, W), RGB or RGBA as "
            "uint8, or floats from 0 to 1"
        )
    return array if array.ndim == 2 else gray_of(Image.fromarray(array))
