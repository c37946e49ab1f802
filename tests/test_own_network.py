"""CONTRIBUTING's "A network of your own": its two files, as they stand there, are all that a network needs."""

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

import hmerbench.models
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.export.onnx_files import described
from hmerbench.benchmarks.recognition.attention import trace
from hmerbench.benchmarks.recognition.predict import predict
from hmerbench.benchmarks.regression_gate.networks import known_network
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training import trainer
from hmerbench.benchmarks.training.trainer import train
from hmerbench.models.network import build
from hmerbench.models.settings import NETWORKS
from hmerbench.models.stepwise import stepwise
from hmerbench.models.weights import load_weights
from tests.helpers.paths import ROOT
from tests.helpers.tiny import SETTINGS, tiny_archive

PAGE = (ROOT / "CONTRIBUTING.md").read_text().partition("## A network of your own\n")[2].partition("\n## ")[0]
SIZE = {"growth_rate": 4, "num_layers": 1, "hidden": 16, "embedding": 16, "attention": 16}
TINY = {key: SETTINGS[key] for key in ("training", "search", "select")}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's recipe, whose network's file lies where `models` finds it, until the test ends."""
    files = re.findall(r"`(?:models|benchmarks/recipes)/(\w+\.\w+)`:\n\n((?: {4}.*\n|\n)+)", PAGE)
    assert [name for name, _ in files] == ["counting.py", "counting.yaml"]
    for name, text in files:
        (tmp_path / name).write_text(dedent(text))
    monkeypatch.setattr(hmerbench.models, "__path__", [*hmerbench.models.__path__, str(tmp_path)])
    yield tmp_path / "counting.yaml"
    NETWORKS.pop("counting", None)
    sys.modules.pop("hmerbench.models.counting", None)


def test_its_file_is_in_the_suites_style(recipe: Path):
    text = recipe.with_name("counting.py").read_text()
    assert max(map(len, text.splitlines())) <= 120
    assert all(ast.get_docstring(node) for node in ast.parse(text).body if isinstance(node, ast.ClassDef))


@pytest.mark.parametrize(
    "right, wrong, message",
    [
        ("from torch import nn", "from torhc import nn", "models/counting.py cannot be imported (ModuleNotFoundError:"),
        ("@dataclass(frozen=True, config=STRICT)", "", "decorate CountingSettings with pydantic's @dataclass"),
        ("(WAPSettings)", "(WAPSettings.__mro__[2])", "CountingSettings must have searcher and sizes, as those of"),
        (
            'code: ClassVar = "hmerbench.models.counting:Counting"',
            "pass",
            "CountingSettings must say where its network is",
        ),
    ],
)
def test_slips_in_its_file_are_named(recipe: Path, right: str, wrong: str, message: str):
    file = recipe.with_name("counting.py")
    file.write_text(file.read_text().replace(right, wrong))
    with pytest.raises(UserError, match=re.escape(message)):
        resolve(str(recipe), "paper", 7)


def test_the_gate_names_the_size_that_it_needs(recipe: Path):
    file = recipe.with_name("counting.py")
    name = '    network: Literal["counting"]'
    file.write_text(file.read_text().replace(name, f'    sizes: ClassVar = {{"published": {{}}}}\n{name}'))
    with pytest.raises(UserError, match="counting: regress builds it in size 'micro'"):
        known_network(resolve(str(recipe), "paper", 7))


def test_what_is_exported_of_it_may_stand_in_its_file(recipe: Path):
    file, name = recipe.with_name("counting.py"), '    network: Literal["counting"]'
    text = file.read_text().replace(name, f'    stepwise: ClassVar = "hmerbench.models.counting:Mine"\n{name}')
    mine = "from hmerbench.models.stepwise import StepwiseDenseWAP\n\n\nclass Mine(StepwiseDenseWAP):\n    pass\n"
    file.write_text(f"{text}\n{mine}")
    network = build(resolve(str(recipe), "paper", 7).changed({"model": SIZE}).model)
    assert type(stepwise(network.eval())).__name__ == "Mine"


class Killed(BaseException):
    pass


def test_two_files_are_enough(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """To train, also after a kill in the middle of an epoch, to read and to show attention."""
    assert recipe.read_text().startswith("description: ")  # what `ls` shows of it
    archive = open_archive(tiny_archive(tmp_path / "archive"))
    config = resolve(str(recipe), "paper", 7, archive).changed({"model": SIZE, **TINY})
    run, killed = RunFolder(tmp_path / "run", config), RunFolder(tmp_path / "killed", config)
    train(run, archive)
    assert len(run.history) == 3

    steps = itertools.count()

    def kill(*_: object) -> None:
        if next(steps) == 4:
            raise Killed

    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "CHECK_STEPS", 1)
    hook = register_optimizer_step_pre_hook(kill)
    with pytest.raises(Killed):
        train(killed, archive)
    hook.remove()
    train(killed, archive)
    assert killed.weights_file.read_bytes() == run.weights_file.read_bytes()

    predict(run, archive, ["2014"])
    assert run.recognized("2014")
    network, sample = load_weights(run.weights_file), archive.samples("2014")[0]
    assert network.settings.network == "counting"
    assert described(stepwise(network.eval()), config)["search"]["rules"] == "densewap"
    assert len(trace(network, config, sample.image, sample.tokens).looked_Thw) == len(sample.tokens) + 1
