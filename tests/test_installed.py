"""The public face, from an installed wheel: outside of a checkout, beside a package `models` of one's own."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import assert_type

import pytest
from packaging.requirements import Requirement

import hmerbench
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import sha256
from hmerbench.benchmarks.paths import COMMITTED
from hmerbench.benchmarks.recognition.default_weights import DIGESTS, FAST_DIGESTS, FAST_RUN, RUN, SOURCE, best_run
from hmerbench.benchmarks.recognition.recognizer import Recognition
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.metrics import Expression
from tests.helpers.paths import ROOT

CIRCLE = ROOT / "results/figures/circle.png"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def link_packages(folder: Path, names: list[str]) -> None:
    """Links to the installed packages of these names and of all that they require, and to nothing else; `hmerbench[…]`
    are those of an extra."""
    folder.mkdir()
    waiting, seen = list(names), set()
    while waiting:
        required = Requirement(waiting.pop())
        name = required.name.lower()
        if name == "hmerbench":
            waiting += [line for extra in required.extras for line in PROJECT["optional-dependencies"][extra]]
            continue
        if name in seen or (required.marker and not required.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        package = metadata.distribution(name)
        waiting += package.requires or []
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(top))))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a package `models`, the wheel in site/ and the packages it requires in base/."""
    place = tmp_path_factory.mktemp("installed")
    for name in ("benchmarks", "models", "evaluation"):
        shutil.copytree(
            ROOT / name, place / "source" / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
        )
    shutil.copytree(ROOT / "hmerbench", place / "source/hmerbench", symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    alone = ["--no-index", "--no-deps"]
    subprocess.run([*pip, "wheel", *alone, "--no-build-isolation", "-w", "wheels", "./source"], cwd=place, check=True)
    (wheel,) = place.glob("wheels/*.whl")
    subprocess.run([*pip, "install", *alone, "--target", "site", str(wheel)], cwd=place, check=True)
    assert (place / "site/hmerbench/py.typed").is_file()  # without it, type checkers ignore the types
    shutil.rmtree(place / "source")
    link_packages(place / "base", PROJECT["dependencies"])
    (place / "models").mkdir()
    (place / "models/__init__.py").write_text("WHOSE = 'mine'\n")
    (place / "mine/test").mkdir(parents=True)
    (place / "mine/test/caption.txt").write_text("a\tx ^ { 2 }\nb\t\\frac { 1 } { 2 }\n")
    (place / "p.tsv").write_text("id\ttokens\na\tx ^ 2\nb\t\\frac { 1 } { 3 }\n")
    return place


def run(
    place: Path, *words: str, torch: bool = False, packages: str = "base", **variables: str
) -> subprocess.CompletedProcess[str]:
    """In an environment with the wheel and what it requires alone, or with all packages that are installed here."""
    paths = ["."] + ([str(place / "site")] if torch else [str(place / "site"), str(place / packages)])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment |= {"HMERBENCH_CACHE": str(place / "cache")} | variables
    command = [sys.executable, *([] if torch else ["-S"]), *words]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)


SCORE = "score --predictions p.tsv --ground-truth mine:test"
FACE = """
import hmerbench, models, sys
print(hmerbench.score("p.tsv", "mine:test").score.exprate)
print(hmerbench.score({"a": "x^2"}, {"a": "x ^ { 2 }"}, tokenize=True).score.exact)
print(hmerbench.compare("p.tsv", {"a": "y", "b": "y"}, "mine:test").only_a)
print(models.WHOSE, "torch" in sys.modules)
try:
    hmerbench.load()
except ImportError as error:
    print("pip install 'hmerbench[recognize]'" in str(error))
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-m", "hmerbench", *SCORE.split()], "exact     1 of 2"),
        (["-m", "hmerbench", *SCORE.split(), "--json"], '"exprate": 50.0'),
        (["-m", "hmerbench", *["compare", "p.tsv", "p.tsv", "--ground-truth", "mine:test"]], "A - B = +0.00 points"),
        (["-m", "hmerbench", *["editions", "--predictions", "p.tsv", "--ground-truth", "mine:test"]], "crohme2019"),
        (["-m", "hmerbench", "doctor", "--scorer"], "ten known cases scored correctly"),
        (["-m", "hmerbench", "scoreboard", "check"], "comer: its predictions are not here"),
        (["-m", "hmerbench", "ls"], "comer-fusion"),
        (["-m", "hmerbench", "lgeval", "extract_exprate", "--help"], ""),
        (["site/hmerbench/evaluation/bin/tex2symlg", "tex", "lg"], "1 files, 1 converted"),
        (["-c", FACE], "50.0\n1\n1\nmine False\nTrue\n"),
    ],
)
def test_scoring_needs_the_base_install_alone(place: Path, words: list[str], says: str) -> None:
    (place / "tex").mkdir(exist_ok=True)
    (place / "tex/a.txt").write_text("%a\n$x$")
    done = run(place, *words)
    assert (done.returncode, says in done.stdout) == (0, True), done


def test_a_card_is_not_written_into_the_package(place: Path) -> None:
    words = {"systems": ".", "predictions": "2014=p.tsv", "name": "M", "paper": "P", "year": "2024", "license": "MIT"}
    words |= {"url": "https://example.org", "training": "crohme", "trained-on": "all"}
    options = [f"--{name}={value}" for name, value in words.items()]
    done = run(place, "-m", "hmerbench", "scoreboard", "add", "mine", *options)
    assert done.returncode == 1 and done.stderr.endswith("add the card to one with --cards evaluation/scoreboard\n")


def test_a_truth_by_id_is_split_like_predictions() -> None:
    raw, tokens = {"a": r"\frac{12}{x}"}, {"a": r"\frac { 1 2 } { x }"}
    for truth in (raw, tokens):
        assert hmerbench.score(raw, truth, tokenize=True).score.exact == 1
    assert hmerbench.compare(raw, tokens, raw, tokenize=True).exact_a == 1


def test_what_needs_more_says_what(place: Path) -> None:
    done = run(place, "-m", "hmerbench", "recognize", str(CIRCLE))
    assert done.returncode == 1 and "pip install 'hmerbench[recognize]'" in done.stderr and done.stderr.count("\n") == 1


def test_with_the_extra_export_a_network_can_be_exported_and_the_doctor_checks_all(place: Path) -> None:
    link_packages(place / "export", [*PROJECT["dependencies"], "hmerbench[export]"])
    for module in ("onnx_files", "draw.make"):
        done = run(place, "-c", f"import hmerbench.benchmarks.export.{module}", packages="export")
        assert done.returncode == 0, done.stderr
    said = run(place, "-m", "hmerbench", "doctor", packages="export").stdout
    for words, here in {"pandas missing": True, "pip install 'hmerbench[suite]'": True, "check failed": False}.items():
        assert (words in said) == here, said


LOADS = """
import hmerbench, os, sys
for source in ("", *sys.argv[3:]):
    os.environ[sys.argv[1]] = source
    try:
        print(hmerbench.__file__, hmerbench.load()(sys.argv[2]).latex)
    except Exception as error:
        print(error)
from hmerbench.benchmarks.cli.main import app
os.environ[sys.argv[1]] = ""  # again without a source
app(["recognize", sys.argv[2]])
"""


@pytest.mark.long
def test_weights_are_fetched_once_and_verified(place: Path, tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir(parents=True)
    for name in DIGESTS:
        (tmp_path / RUN / name).write_bytes(b"something else")
    sources = tmp_path.as_uri(), ROOT / "results/reproduced"
    said = run(place, "-c", LOADS, SOURCE, str(CIRCLE), *map(str, sources), torch=True).stdout
    nowhere, other, read, recognized = said.splitlines()
    assert f"set {SOURCE} to" in nowhere and "expected the digest" in other
    assert recognized == "x ^ { 2 } + y ^ { 2 } = r ^ { 2 }"
    assert read == f"{place}/site/hmerbench/__init__.py {recognized}"


@pytest.mark.parametrize(("fast", "run", "digests"), [(False, RUN, DIGESTS), (True, FAST_RUN, FAST_DIGESTS)])
def test_the_default_weights_are_those_of_the_best_committed_run(fast: bool, run: str, digests: dict[str, str]) -> None:
    """Or, fast, of the best of those with small weights."""
    rates = {}
    for weights in COMMITTED.glob("*/*/best.safetensors"):
        read = [json.loads(path.read_text()) for path in weights.parent.glob("scores/*.json")]
        if not fast or weights.stat().st_size < 4.8e6:  # half of the largest
            rates[weights.parent] = sum(s["exact"] for s in read) / sum(s["n"] for s in read)
    best = best_run(fast)
    assert rates[best] == max(rates.values()) and best == COMMITTED / run
    assert {name: sha256(best / name) for name in digests} == digests


def test_a_set_that_one_run_alone_has_read_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, **exact: int) -> SimpleNamespace:
        scores = {split: SimpleNamespace(exact=count, n=10) for split, count in exact.items()}
        return SimpleNamespace(path=name, scores=scores, exprate=0, has_weights=True, weights_file=ROOT / "README.md")

    runs = [run("better", common=8, hard=0), run("worse", common=7)]
    monkeypatch.setattr(RunFolder, "under", lambda _: runs)
    assert best_run() == "better"
    runs[1].scores["common"].exact = 9
    assert best_run() == "worse"


@pytest.mark.parametrize(
    ("predictions", "truth", "says"),
    [
        ({"../a": "x"}, {"a": "x"}, "cannot be the id of an expression"),
        ({"b": "x"}, {"a": "x"}, "none of its 1 ids"),
        ({}, {"a": "x"}, "predictions: holds no LaTeX"),
        ({"a": "x"}, {}, "ground truth: holds no LaTeX"),
        ({"a": None}, {"a": "x"}, "predictions: 'a': None: an id and its LaTeX must be text"),
        ({"a": "x"}, {1: "x"}, "ground truth: 1: 'x': an id and its LaTeX must be text"),
        ({"a": "x"}, {"a": r"\nonsense"}, "a does not convert to symLG"),
        ("nowhere.tsv", {"a": "x"}, "nowhere.tsv: there is no such file"),
        ({"a": "x"}, "nowhere.zip:2014", "nowhere.zip: there is no such archive"),
    ],
)
def test_what_cannot_be_scored_is_one_line(predictions, truth, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        hmerbench.score(predictions, truth)
    assert "\n" not in str(caught.value)


class Named(os.PathLike[str]):
    """A path whose str is not the path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return self.path


def test_a_file_is_whatever_has_a_path(place: Path) -> None:
    assert hmerbench.score(Named(f"{place}/p.tsv"), Named(f"{place}/mine:test")).score.exact == 1
    with pytest.raises(UserError, match=r"^nowhere: "):
        hmerbench.load(Named("nowhere"))


def types_that_users_see() -> None:
    """Checked by `make types`, never run."""
    result, recognizer = hmerbench.score("p.tsv", "mine:test"), hmerbench.load()
    assert_type(result.score.exprate, float)
    assert_type(result.score.n, int)
    assert_type(result.expressions, list[Expression])
    assert_type(hmerbench.compare("p.tsv", {"a": "y"}, "mine:test").interval, tuple[float, float])
    assert_type(recognizer("a.png"), Recognition)
    assert_type(recognizer(["a.png", Path("b.png"), b""]), list[Recognition])
