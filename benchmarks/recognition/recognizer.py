"""Recognition of single images: an image file becomes ink as CROHME renders it (data/normalize_image.py), then LaTeX.

    import hmerbench

    recognizer = hmerbench.load()
    print(recognizer("formula.png").latex)

On the command line: `hmerbench recognize formula.png`.
"""

import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.normalize_image import prepare
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.environment import best_device
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.recognition.attention import TracedAttention, trace
from hmerbench.benchmarks.recognition.default_weights import default_weights
from hmerbench.benchmarks.recognition.predict import SCORES, Reader
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.models.authors_checkpoint import import_lightning
from hmerbench.models.inference.options import Hypothesis
from hmerbench.models.network import Network
from hmerbench.models.weights import load_weights

# A result with a lower mean probability per token is reported as doubtful. Chosen with the preset `hour` on patterns
# and on training images, plain and distorted beyond the training augmentation (test_recognizer.py repeats it on a small
# scale with the best committed network). It detects images of no expression; most errors are more confident.
DOUBTFUL = 0.7


@dataclass(frozen=True)
class Candidate(Hypothesis):
    """A hypothesis of the search, whose scores were divided by length ** alpha."""

    tokens: tuple[str, ...] = ()  # in reading order
    alpha: float = 1.0

    @property
    def latex(self) -> str:
        """The tokens, separated by spaces."""
        return " ".join(self.tokens)

    @property
    def confidence(self) -> float:
        """Geometric mean of the token probabilities over all directions and image sizes, from 0 to 1."""
        own = (self.forward + self.reverse) * self.length**self.alpha  # without a language model's share
        return math.exp(own / (len(self.ids) + 1) / (2 if self.reverse else 1))


@dataclass(frozen=True)
class Recognition:
    """The distinct candidates for an image, best first, and the ink they were read from: `ink` is (H, W) uint8, white
    on black, at the scale of CROHME's images, and `prepared` tells what was done to the picture to get it."""

    name: str
    ink: np.ndarray
    nbest: tuple[Candidate, ...]
    prepared: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        """Tokens of the best candidate."""
        return self.nbest[0].tokens

    @property
    def latex(self) -> str:
        """LaTeX of the best candidate."""
        return self.nbest[0].latex

    @property
    def doubtful(self) -> bool:
        """Whether the confidence is so low that the image may not show an expression."""
        return self.nbest[0].confidence < DOUBTFUL

    def as_json(self, count: int) -> str:
        """One line of JSON with the best `count` candidates."""
        best = self.nbest[0]
        fields = {
            "image": self.name,
            "prepared": self.prepared,
            "latex": best.latex,
            "score": best.score,
            "confidence": round(best.confidence, 4),
            "doubtful": self.doubtful,
            "nbest": [
                {"latex": c.latex, "confidence": round(c.confidence, 4), **{key: getattr(c, key) for key in SCORES}}
                for c in self.nbest[:count]
            ],
        }
        return json.dumps(fields)


class Recognizer:
    """A trained network with the settings it was trained with."""

    def __init__(self, model: Network, config: Config):
        self.device = best_device()
        self.model, self.config = model.to(self.device).eval(), config

    @cached_property
    def _read(self) -> Reader:
        return Reader(self.model, self.config, self.device)

    @property
    def name(self) -> str:
        """Which network this is, for people: recipe, preset, seed and number of parameters."""
        config, size = self.config, sum(parameter.numel() for parameter in self.model.parameters())
        return f"{config.recipe}, {config.preset}, seed {config.seed} ({size / 1e6:.1f} M parameters)"

    @classmethod
    def load(cls, weights: Path | str | None = None) -> "Recognizer":
        """Load a run folder, a weights file in one, or a Lightning checkpoint (.ckpt) of CoMER's authors; by default,
        the best committed run. Raises UserError or CheckpointError if the weights cannot be loaded."""
        path = default_weights() if weights is None else Path(weights)
        if path.suffix == ".ckpt":
            model = import_lightning(path)
            recipe = re.sub(r"^[^\w+]|[^\w+., =-]", "_", path.stem)
            return cls(model, Config(recipe=recipe, preset="paper", model=model.settings))
        run = RunFolder(path if path.is_dir() else path.parent)
        file = run.weights if path.is_dir() else path
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

    def __call__(self, image: Path | str | np.ndarray) -> Recognition:
        """Recognize an image file, or a gray image (H, W) uint8.

        Raises UserError if it is unreadable, another array or without ink, if the network overflows or finds nothing.
        """
        name, source = ("image", image) if isinstance(image, np.ndarray) else (str(image), Path(image))
        prepared = prepare(source, name, self.config.data.max_area)
        best: dict[tuple[int, ...], Candidate] = {}
        for hypothesis in self._read([Sample(name, (), prepared.ink)])[name]:
            tokens = tuple(self.model.vocabulary.decode(hypothesis.ids))
            candidate = Candidate(**vars(hypothesis), tokens=tokens, alpha=self.config.search.alpha)
            best.setdefault(candidate.ids, candidate)  # both directions may find it; the first is the better one
        if not best:
            longest = self.config.search.max_len
            raise UserError(f"{name}: nothing that ends within {longest} symbols was found; is it one expression?")
        return Recognition(name, prepared.ink, tuple(best.values()), prepared.done)

    def attention(self, recognition: Recognition) -> TracedAttention:
        """Attention of the network while it reads the best candidate."""
        return trace(self.model, self.config, recognition.ink, recognition.tokens)
