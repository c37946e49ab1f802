"""The command line: what it offers, and one line for every error."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as cli
from benchmarks.errors import UserError
from tests.helpers.places import ROOT

VERBS = """data crohme train predict score reproduce track tables report compare regress doctor ls speed
timings precision import-weights recognize attention"""


def program(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def loaded(name: str) -> set[str]:
    """What importing a module brings with it."""
    code = f"import sys, {name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_help_is_quick_and_names_every_verb(tmp_path: Path) -> None:
    done = program("--help", cwd=tmp_path)
    assert done.returncode == 0
    for verb in VERBS.split():
        assert f" {verb} " in done.stdout
    assert not loaded("benchmarks.__main__") & {"torch", "pandas", "mlflow"}


@pytest.mark.parametrize("name", ["config", "runs.listing", "report.tables", "report.figures.write"])
def test_settings_tables_and_figures_load_without_torch(name: str) -> None:
    assert "torch" not in loaded(f"benchmarks.{name}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "--crohme", "nowhere.zip"], "nowhere.zip"),
        (["reproduce", "--crohme", "junk.zip"], "junk.zip"),
        (["data", "--crohme", "junk.zip"], "junk.zip"),
        (["train"], "name one run"),
        (["train", "nowhere"], "nowhere/config.yaml: no such file, so this is not a run folder"),
        (["score", "run"], "run/config.yaml"),
        (["track", "nowhere"], "not a run folder"),
        (["reproduce", "--seeds", "x"], "'x' is not a seed"),
        (["reproduce", "--seeds", str(2**64)], f"'{2**64}' is not a seed"),
        (["reproduce", "--seeds", "9" * 5000], f"'{'9' * 40}' is not a seed"),
        (["reproduce", "--minutes", "-3"], "--minutes -3: no time to work in"),
        (["reproduce", "--minutes", "nan"], "--minutes nan: no time to work in"),
        (["tables", "--results", "junk.zip/deeper"], "junk.zip/deeper"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "junk.zip").write_bytes(b"PK\x03\x04 not really")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("recipe: bttr\npreset: smoke\nnonsense: 1\n")
    done = program(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert words in done.stderr


def test_results_are_the_projects_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HMERBENCH_RESULTS")
    assert f"runs under {ROOT / 'results'}" in program("ls", cwd=tmp_path).stdout
    assert "no runs under results" in program("ls", cwd=tmp_path, HMERBENCH_RESULTS="results").stdout


def test_what_does_not_fit_a_verb_is_a_usage_error(tmp_path: Path) -> None:
    for words, said in (
        ("no-such-verb", "No such"),
        ("reproduce --no-such-option", "No such"),
        ("report --attention=-3", "Invalid value for"),
        ("train --seed=-3", "Invalid value for"),
    ):
        done = program(*words.split(), cwd=tmp_path)
        assert done.returncode == 2 and "Traceback" not in done.stderr and said in done.stderr


def tell(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    return cli._tell(error), capsys.readouterr().err


def test_what_an_error_says(capsys: pytest.CaptureFixture[str]) -> None:
    from evaluation import InputError
    from models import CheckpointError

    for kind in (UserError, InputError, CheckpointError):
        assert tell(kind("a.zip: fix it"), capsys) == (1, "error: a.zip: fix it\n")
    full = OSError(errno.ENOSPC, "No space left on device", "results/x")
    assert tell(full, capsys) == (
        1,
        "error: results/x: No space left on device; make room and run the same command again\n",
    )
    sealed = OSError(errno.EROFS, "Read-only file system", "results")
    assert "choose a place that can be written" in tell(sealed, capsys)[1]
    assert "hmerbench[suite]" in tell(ModuleNotFoundError("No module named 'pandas'"), capsys)[1]
    scarce = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …")
    assert tell(scarce, capsys)[1].startswith(
        "error: CUDA out of memory. Tried to allocate 2.00 GiB; a smaller training"
    )
    code, line = tell(RuntimeError("several\nlines"), capsys)
    assert code == 1 and line.startswith("error: RuntimeError: several lines") and line.count("\n") == 1


def test_a_traceback_is_shown_on_request_only(tmp_path: Path) -> None:
    arguments = ["reproduce", "--crohme", "nowhere.zip"]
    assert "Traceback" not in program(*arguments, cwd=tmp_path).stderr
    assert "Traceback" in program(*arguments, cwd=tmp_path, HMERBENCH_DEBUG="1").stderr


def test_ctrl_c_says_what_is_kept(tmp_path: Path) -> None:
    """A real SIGINT, while the embedded set is being made."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "reproduce"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    deadline = time.monotonic() + 300
    while not (tmp_path / "results/local/embedded").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped: finished stages and the last checkpoint are kept" in said and "Traceback" not in said
