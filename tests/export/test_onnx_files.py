"""The exported networks and their reader in numpy, against PyTorch's search."""

import ast
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
import torch

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.augmentation import _rescaled, rescale, sides
from hmerbench.benchmarks.data.batching import evaluation_batches
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.data.sizes import within_limits
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.export import onnx_files
from hmerbench.benchmarks.export.onnx_files import as_bytes, described, write_onnx
from hmerbench.benchmarks.recognition import onnx_reader
from hmerbench.benchmarks.recognition.complete_latex import is_complete
from hmerbench.benchmarks.recognition.onnx_reader import Reader, at_scale
from hmerbench.benchmarks.recognition.predict import ConfiguredSearcher
from hmerbench.benchmarks.regression_gate.networks import known_network
from hmerbench.benchmarks.resolve import resolve
from hmerbench.evaluation.symlg import Unconverted, from_latex
from hmerbench.models.network import Network
from hmerbench.models.stepwise import stepwise
from hmerbench.models.vocab import Vocabulary
from tests.helpers.paths import ROOT

RECIPES = {  # and the preset with whose settings of sizes and search it reads
    "comer-fusion": "large",
    "comer-self": "paper",
    "comer-cross": "medium",
    "bttr-baseline": "small",
    "bttr": "large",
    "bttr-original": "medium",
    "bttr-uni": "paper",
    "densewap": "medium",
}
SHORT = {"search.max_len": 12, "search.beam_size": 8, "search.bf16": False}


def drawing(seed: int = 0) -> np.ndarray:
    """Strokes as CROHME renders them, which mean nothing."""
    draw, image = np.random.default_rng(seed), np.zeros((90 + 7 * seed, 200 + 31 * seed), np.uint8)
    for _ in range(6):
        points = draw.integers(14, (image.shape[1] - 14, image.shape[0] - 14), (4, 2))
        cv2.polylines(image, [points.astype(np.int32)], False, 255, 3)
    return image


def drawings() -> list[np.ndarray]:
    """Of several sizes; the last has one row of cells, at the smaller sizes."""
    return [*map(drawing, range(3)), drawing()[30:50, 40:160]]


def known(recipe: str, **changes: Any) -> tuple[Network, Config]:
    config = resolve(recipe, RECIPES.get(recipe, "paper"), 0).changed(SHORT)
    model: Any = known_network(config, **changes).float()
    if recipe.startswith("densewap") and recipe != "densewap-td":  # else nothing ends in time
        model.decoder.classes.bias.data[0] += 12
    return model, config


class InTorch:
    """In place of onnxruntime's session: a network that was not exported."""

    def __init__(self, function: Any, inputs: list[str], outputs: list[str]) -> None:
        self.function, self.inputs, self.outputs = function, inputs, outputs

    def get_inputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in self.inputs]

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in self.outputs]

    @torch.inference_mode()
    def run(self, wanted: list[str] | None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        found = self.function(*(torch.from_numpy(feeds[name]) for name in self.inputs))
        by_name = dict(zip(self.outputs, found, strict=True))
        return [by_name[name].numpy() for name in wanted or self.outputs]


def in_torch(model: Network, config: Config) -> Reader:
    reader, network = object.__new__(Reader), stepwise(model)
    reader.model = json.loads(json.dumps(described(network, config)))
    first = [name for name, shape in network.state.items() if shape is None]
    carried = [*network.state, *network.cache]
    inputs, next_ = ["words", *network.before, *network.memory, *carried], [f"next_{name}" for name in carried]
    step: Any = InTorch(network.step, inputs, ["logp", "looked", *next_])
    encoder: Any = InTorch(network.encode, ["image", "size"], [*network.memory, *first])
    reader.step, reader.encoder = step, encoder
    return reader


def expected(model: Network, config: Config, image: np.ndarray) -> dict[tuple[str, ...], float]:
    """What PyTorch's search finds, best first, with scores."""
    found: dict[tuple[str, ...], float] = {}
    for hypothesis in ConfiguredSearcher(model, config, torch.device("cpu"))([Sample("x", (), image)])["x"]:
        found.setdefault(tuple(model.vocabulary.decode(hypothesis.ids)), hypothesis.score)
    return found


def assert_same(reader: Reader, model: Network, config: Config, image: np.ndarray) -> None:
    """The same hypotheses; their scores differ as a few pixels do, by 1 of 255, where OpenCV sums in another order."""
    ours, theirs = reader(image), expected(model, config, image)
    assert theirs and [h.tokens for h in ours] == [*theirs]
    assert [h.score for h in ours] == pytest.approx([*theirs.values()], abs=5e-4)


@pytest.mark.parametrize("recipe", RECIPES)
def test_step_by_step_every_network_reads_as_its_search_does(recipe: str) -> None:
    model, config = known(recipe)
    reader = in_torch(model, config)
    for image in drawings()[::3]:
        assert_same(reader, model, config, image)


def test_padding_inside_a_hypothesis_counts_for_nothing() -> None:
    """As with the authors, whose networks may write it, too."""
    (model, config), image = known("comer-fusion"), drawing()
    network: Any = model
    network.decoder.proj.bias.data[0] += 4
    theirs = expected(model, config, image)
    assert any("<pad>" in tokens for tokens in theirs)
    assert {h.tokens: h.score for h in in_torch(model, config)(image)} == pytest.approx(theirs, abs=5e-4)


@pytest.mark.parametrize("state", ["cache1", "coverage1", "rows", "places", "visible", "earlier"])
def test_readings_depend_on_what_is_carried_along(state: str) -> None:
    model, config = known("comer-fusion")
    reader: Any = in_torch(model, config)
    plain = reader.step.run

    def forgetful(wanted: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return plain(wanted, {**feeds, state: np.zeros_like(feeds[state])})

    reader.step.run = forgetful
    with pytest.raises(AssertionError):
        assert_same(reader, model, config, drawing())


@pytest.mark.parametrize("cells", [0, 4000])
def test_readings_do_not_depend_on_how_much_is_read_at_once(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = known("comer-fusion")
    reader: Any = in_torch(model, config)
    plain, several = reader.step.run, list[bool]()

    def watched(wanted: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        several.append(bool(feeds["earlier"].any() and feeds["visible"].any()))  # steps, after others
        return plain(wanted, feeds)

    reader.step.run = watched
    monkeypatch.setattr(onnx_reader, "MOST_CELLS", cells)
    assert_same(reader, model, config, drawing())
    assert any(several) == (cells > 0)


LAYERS = {"densewap": {"num_layers": 1}, "comer-fusion": {"num_layers": 1, "num_decoder_layers": 2}}


@pytest.fixture(scope="module", params=LAYERS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Network, Config]:
    """Small networks; that of the page to draw on, which was trained, is exported by tests/export/test_draw.py."""
    folder = tmp_path_factory.mktemp(request.param)
    model, config = known(request.param, **LAYERS[request.param])
    write_onnx(model, config, folder)
    return folder, model, config


@pytest.mark.long
def test_an_exported_network_reads_as_in_pytorch(exported: tuple[Path, Network, Config]) -> None:
    """Of other sizes than the image that it was exported with, and with any number of hypotheses; with the scores that
    it has before it is exported."""
    folder, model, config = exported
    for image in drawings():
        ours, before = Reader(folder)(image), in_torch(model, config)(image)
        assert [h.tokens for h in ours] == [h.tokens for h in before] == [*expected(model, config, image)]
        assert [h.score for h in ours] == pytest.approx([h.score for h in before], abs=1e-4)
    assert sys.float_info.min * 0.5 > 0, "reading has changed how this thread's processor rounds"


def test_no_file_tells_where_it_was_made(exported: tuple[Path, Network, Config]) -> None:
    """The exporter notes at each operation the lines of the program that it comes from, with their paths."""
    assert [path.name for path in exported[0].iterdir() if str(ROOT).encode() in path.read_bytes()] == []


def test_the_folder_reads_by_itself(exported: tuple[Path, Network, Config], tmp_path: Path) -> None:
    """With its own reader, which imports nothing of this suite and not PyTorch; it is made of several files, which
    define nothing twice."""
    folder, model, config = exported
    tree = ast.parse((folder / "reader.py").read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
        )
    }
    assert imported - set(sys.stdlib_module_names) <= {"numpy", "onnxruntime", "PIL", ""}
    defined = Counter(
        found.id if isinstance(found, ast.Name) else found.name
        for node in tree.body
        for found in ([*ast.walk(node)] if isinstance(node, ast.Assign) else [node])
        if isinstance(found, ast.ClassDef | ast.FunctionDef)
        or (isinstance(found, ast.Name) and isinstance(found.ctx, ast.Store))
    )
    assert {"BeamSearch", "Evidence", "MOST_CELLS"} <= {*defined} and {*defined.values()} == {1}
    cv2.imwrite(str(tmp_path / "a.png"), drawing())
    command = [sys.executable, folder / "reader.py", tmp_path / "a.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == " ".join(next(iter(expected(model, config, drawing())))) + "\n"
    cv2.imwrite(str(tmp_path / "paper.png"), 255 - drawing())
    cv2.imwrite(str(tmp_path / "black.png"), 0 * drawing())
    unread = [tmp_path / f"{name}.png" for name in ("paper", "none", "black")]
    read, done = done.stdout, subprocess.run([*command, *unread], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-3].startswith(
        f"{tmp_path}/paper.png: bright; this reads what"
    )
    assert "No such file" in done.stderr.splitlines()[-2] and "white ink on black" in done.stderr.splitlines()[-1]
    assert done.stdout == read
    done = subprocess.run(command[:2], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(f"usage: {folder}/reader.py IMAGE")


def test_smaller_weights(
    exported: tuple[Path, Network, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model, config = exported
    files = [folder / "encoder.onnx", folder / "step.onnx"]
    monkeypatch.setattr(onnx_files, "programs", lambda _: [*map(onnx.load, files)])
    sizes, scores = {}, {}
    for weights in ("float32", "float16", "int8"):
        write_onnx(model, config, tmp_path / weights, weights)
        sizes[weights] = sum(path.stat().st_size for path in (tmp_path / weights).glob("*.onnx"))
        scores[weights] = {h.tokens: h.score for h in Reader(tmp_path / weights)(drawing())}
    assert sizes["int8"] < sizes["float16"] < sizes["float32"]
    plain = scores["float32"]
    away = {
        weights: max((abs(score - plain[tokens]) for tokens, score in found.items() if tokens in plain), default=9.0)
        for weights, found in scores.items()
    }
    assert away["float32"] == 0 < away["float16"] < away["int8"] < 0.2


def test_as_bytes_loses_at_most_half_a_step() -> None:
    values = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32) * np.linspace(0.1, 9, 30)
    whole, scale = as_bytes(values.astype(np.float32))
    assert scale.shape == (1, 30) and (np.abs(whole * scale - values) <= 0.5001 * scale).all()


@pytest.mark.parametrize("size", [(90, 200), (37, 41), (12, 300), (300, 40), (256, 1100), (5, 5)])
def test_images_are_scaled_as_in_opencv(size: tuple[int, int]) -> None:
    image = (np.random.default_rng(1).random(size) > 0.7).astype(np.uint8) * np.uint8(255)
    for base in (0.375, 0.5, 1.0):
        for scale in (0.85, 1.0, 1.45):
            theirs = (
                rescale(image, within_limits(*sides(image))) if base * scale == 1 else _rescaled(image, base * scale)
            )
            ours = at_scale(image, base, scale)
            assert ours.shape == theirs.shape and np.abs(ours.astype(int) - theirs).max() <= 1


def test_images_are_padded_as_in_pytorch() -> None:
    for preset in ("medium", "large", "gpu", "paper"):
        config = resolve("comer-fusion", preset, 0)
        model = json.loads(json.dumps(described(stepwise(known("comer-fusion")[0]), config)))
        for seed in range(5):
            [batch] = evaluation_batches([Sample("x", (), drawing(seed))], config, 1, config.search.scales)
            for (image, size), (images, mask) in zip(onnx_reader.views(drawing(seed), model), batch.views, strict=True):
                assert image.shape == images.shape[2:]
                assert size == tuple(int((~mask[0]).any(side).sum()) for side in (1, 0))


def test_complete_latex_is_what_the_scorer_converts() -> None:
    draw, words = np.random.default_rng(0), Vocabulary().words[3:]
    hard = ["{", "}", "^", "_", r"\frac", r"\sqrt", "[", "]", r"\limits", "x"]
    seen = set()
    for _ in range(4000):
        tokens = tuple(str(draw.choice(hard if draw.random() < 0.8 else words)) for _ in range(draw.integers(1, 9)))
        try:
            from_latex(tokens)
            converts = True
        except Unconverted:
            converts = False
        assert is_complete(tokens) == converts, tokens
        seen.add(converts)
    assert seen == {True, False}


# ------------------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="densewap-td has no `stepwise` in its settings; give a run of another network"):
        write_onnx(*known("densewap-td"), tmp_path)
    with monkeypatch.context() as without, pytest.raises(UserError, match="must name its `rules`, which are joint or "):
        without.delattr("hmerbench.models.inference.densewap_search.DenseWAPSearch.rules")
        write_onnx(*known("densewap"), tmp_path)
    with pytest.raises(UserError, match="'int4': choose float32, float16 or int8"):
        write_onnx(*known("comer-fusion"), tmp_path, "int4")
    assert not any(tmp_path.iterdir())


def test_an_export_leaves_the_network_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, `export --compare` reads with it after the exports, which bring a network to the CPU."""
    monkeypatch.setattr(onnx_files, "programs", lambda network: (network, network))
    monkeypatch.setattr(onnx_files, "smaller", lambda program, weights: b"")
    model, config = known("densewap")
    write_onnx(model.double(), config, tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


@pytest.mark.parametrize("damage", ["none", "empty", "other", "cut"])
def test_a_damaged_folder_is_refused(exported: tuple[Path, Network, Config], tmp_path: Path, damage: str) -> None:
    if damage != "none":
        shutil.copytree(exported[0], tmp_path, dirs_exist_ok=True)
    if damage == "empty":
        (tmp_path / "model.json").write_text("")
    elif damage == "other":
        (tmp_path / "model.json").write_text('{"format": "x"}')
    elif damage == "cut":
        (tmp_path / "step.onnx").write_bytes((tmp_path / "step.onnx").read_bytes()[:999])
    with pytest.raises(ValueError, match="not a folder of an exported network") as error:
        Reader(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "ink", [np.zeros((9, 9), np.uint8), np.ones((9, 9, 3), np.uint8), np.ones((9, 9)), np.ones((0, 5), np.uint8)]
)
def test_what_is_no_ink_is_refused(ink: np.ndarray) -> None:
    with pytest.raises(ValueError, match="white ink on black"):
        in_torch(*known("comer-fusion"))(ink)
    with pytest.raises(ValueError, match="larger than 320,000 px"):
        in_torch(*known("comer-fusion"))(np.ones((600, 600), np.uint8))
