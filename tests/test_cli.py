"""The command line: its commands, and one line for every error."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from typer.main import get_command

from hmerbench.benchmarks.cli import main as cli
from hmerbench.benchmarks.cli import runs
from hmerbench.benchmarks.cli.options import parse_list
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import console, show
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import forget_trainings
from hmerbench.benchmarks.training.checkpoint import load_checkpoint
from hmerbench.evaluation import InputError
from hmerbench.models.files import CheckpointError
from tests.helpers.made_up import put_history, put_score
from tests.helpers.paths import NO_STORE, ROOT
from tests.helpers.tiny import tiny_archive, tiny_config, untrained_run

Run = Callable[..., tuple[int, str]]
COMMANDS = """data crohme nested train predict score reproduce track tables report compare regress doctor ls bench
import-data recognize attention remove from-ink errors editions lgeval scoreboard"""


def program(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hmerbench", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The same in this process, from `tmp_path`: the exit code and what was said on stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        return cli.main(), capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("target", "variable", "reason"),
    [
        ("reproduce-table2", "CROMHE=data.zip", "there is no variable CROMHE"),
        ("reproduce-table2", "YEAR=2014", "there is no variable YEAR"),
        ("reproduce-lm", "RECIPE=bttr", "there is no variable RECIPE"),
        ("evaluate", "SEEDS=8", "make evaluate does not take SEEDS"),
        ("figures", "PRESET=medium", "make figures does not take PRESET"),
        ("reproduce-lm", "EPOCHS=3", "make reproduce-lm does not take EPOCHS"),
        ("figures", "OPTIONS=--bogus", "make figures does not take OPTIONS"),
        ("test", "JOBS=2", "make test does not take JOBS"),
    ],
)
def test_make_refuses_variables_that_it_would_ignore(target: str, variable: str, reason: str) -> None:
    done = subprocess.run(["make", "-n", target, variable], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and reason in done.stderr


def test_help_is_quick_and_lists_every_command(tmp_path: Path) -> None:
    done = program("--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in COMMANDS.split():
        assert f" {command} " in done.stdout
    code = "import sys, hmerbench.benchmarks.cli.main; print({'torch', 'pandas', 'mlflow'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "set()\n"


def test_the_version_is_that_of_the_package_or_of_the_checkout_where_it_is_not_installed(capsys, monkeypatch) -> None:
    said = f"hmerbench {metadata.version('hmerbench')}\n"
    cli.app(["--version"], standalone_mode=False)
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError))
    cli.app(["--version"], standalone_mode=False)
    assert capsys.readouterr().out == 2 * said


def test_help_says_what_no_preset_means_where_none_need_be_given() -> None:
    commands: Any = get_command(cli.app)
    said = {
        name: next(option.help for option in commands.commands[name].params if option.name == "preset")
        for name in ("reproduce", "train", "equivalence", "trial")
    }
    assert {name for name, words in said.items() if "empty: smoke" in words} == {"reproduce", "train"}
    assert {name for name, words in said.items() if "with --from: the weights' own" in words} == {"train"}


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("benchmarks ls", "is now called `hmerbench ls`"),
        ("hmerbench.benchmarks train --recipe bttr", "is now called `hmerbench train`"),
        ("evaluation score --predictions a", "is now called `hmerbench score`"),
        ("evaluation doctor", "is now called `hmerbench doctor --scorer`"),
        ("evaluation.scoreboard check", "is now called `hmerbench scoreboard check`"),
        ("evaluation.scoreboard add x", "is now called `hmerbench scoreboard add`"),
        ("evaluation score --predictions scoreboard.csv", "is now called `hmerbench score`"),
        ("benchmarks precision", "is now called `hmerbench trial`"),
        ("benchmarks", "is now called `hmerbench`"),
        ("hmerbench convention --predictions a", "is now called `hmerbench editions`"),
        ("benchmarks gpu-check", "`python -m benchmarks gpu-check` is gone"),
        ("hmerbench timings", "`hmerbench timings` is gone"),
        ("evaluation.lgeval evaluate", "evaluation/ is imported as hmerbench.evaluation"),
    ],
)
def test_a_command_of_before_says_what_became_of_it(before: str, words: str) -> None:
    done = subprocess.run([sys.executable, "-m", *before.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and words in done.stderr


def test_scripts_of_lgeval_keep_their_names(in_process: Run, tmp_path: Path) -> None:
    """By the command and as programs on the PATH."""
    (tmp_path / "tex").mkdir()
    (tmp_path / "tex/a.txt").write_text("%a\n$x ^ { 2 }$")
    done = program("lgeval", "tex2symlg", "tex", "one", "--edition", "current", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1 files, 1 converted to one\n")
    folder = program("lgeval", cwd=tmp_path).stdout.partition("put ")[2].partition(" on the PATH")[0]
    path = f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["tex2symlg", "tex", "two"], cwd=tmp_path, env={"PATH": path}, check=True, capture_output=True)
    assert (tmp_path / "one/a.lg").read_text() == (tmp_path / "two/a.lg").read_text()
    code, said = in_process("lgeval", "evalute")
    assert code == 1 and "error: no script called 'evalute': choose one of tex2symlg" in said
    refused = program("lgeval", "evaluate", "one", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith("Usage: evaluate OUTDIR GTDIR")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("reproduce --crohme nowhere.zip", "nowhere.zip"),
        ("reproduce --crohme junk.zip", "junk.zip"),
        ("data --crohme junk.zip", "junk.zip"),
        ("train", "name one run"),
        ("train --recipe comer-fusion --from run", "name one run"),
        ("train nowhere", "nowhere: this is not a run folder (no config.yaml is in it)"),
        ("score run", "run/config.yaml"),
        ("track nowhere", "not a run folder"),
        ("reproduce --seeds x", "'x' is not a seed"),
        (f"reproduce --seeds {2**64}", f"'{2**64}' is not a seed"),
        (f"reproduce --seeds {'9' * 5000}", f"'{'9' * 40}' is not a seed"),
        ("tables --results junk.zip/deeper", "junk.zip/deeper"),
        ("report --systems nowhere", "nowhere: there is no such folder"),
        ("draw --replay junk.zip", "junk.zip"),
        # options of the other form of a command
        ("score run --json", "--json: does not go with a run folder"),
        ("score run --predictions a", "--predictions: does not go with a run folder"),
        ("score --predictions a --ground-truth b --years 2014", "--years: does not go with --predictions"),
        ("compare a b --ground-truth c --every-pair", "--every-pair: does not go with --ground-truth"),
        ("import-data a b.zip --split c --split-list d", "--split-list says what into which; leave one out"),
        ("import-data a b.zip --as-is --limits add", "--limits add changes captions, --as-is changes none"),
        ("import-data a b.zip --test-share 1.5", "--test-share 1.5: must lie between 0 and 1"),
        ("regress --reason why", "--reason: does not go with a comparison; give --update"),
        ("regress --record 4 --parts scores", "--record 4: retrains, but --parts leaves out training"),
        ("export run --images 9", "--images: does not go with an export; --compare reads them"),
        (f"export {ROOT / 'README.md'} --compare a", "README.md: a comparison tells what a run reads; give its folder"),
        ("export run --compare a --to hub", "--to: does not go with --compare"),
        ("serve --load 9 --port 9", "--port: does not go with --load"),
        ("draw run --drawings 9", "--drawings: does not go with a page; --replay draws on it"),
        ("compare a --changed b", "--changed: does not go with runs; give --ground-truth"),
        (f"compare {ROOT / 'README.md'} b", "README.md: a file of predictions is compared on a ground truth"),
    ],
)
def test_bad_input_is_one_line(in_process: Run, tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "junk.zip").write_bytes(b"PK\x03\x04 not really")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("recipe: bttr\npreset: smoke\nnonsense: 1\n")
    code, said = in_process(*line.split())
    assert code == 1
    assert said.startswith("error: ") and said.count("\n") == 1
    assert words in said


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("reproduce --recipes comer-fusoin", "no recipe called 'comer-fusoin': choose one of bttr, "),
        ("reproduce --preset smal", "no preset called 'smal'"),
        ("train --recipe bttr --preset smal", "no preset called 'smal'"),
        ("tune --recipe btr", "no recipe called 'btr'"),
        ("trial --epochs 1 --recipe btr", "no recipe called 'btr'"),
        ("reproduce-lm --recipes lm-char", "no recipe called 'lm-char'"),
        ("reproduce-lm --ptb words --crohme data.zip", "words and data.zip: two texts to train on"),
    ],
)
def test_a_misspelt_name_is_refused_before_data_is_made(in_process: Run, monkeypatch, command: str, words: str) -> None:
    made = Mock(side_effect=AssertionError("data was opened"))
    monkeypatch.setattr("hmerbench.benchmarks.runs.workspace.open_data", made)
    code, said = in_process(*command.split())
    assert code == 1 and words in said


@pytest.mark.parametrize(
    ("gpu", "archive", "preset"),
    [
        (False, None, "smoke"),
        (True, None, "large"),  # on the embedded set
        (True, "with/data.zip", "large"),
        (True, "without/data.zip", "small"),
        (True, "missing/data.zip", "large"),  # only that it is missing is told
    ],
)
def test_the_preset_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, gpu: bool, archive: str, preset: str
) -> None:
    """A GPU is given `large`, but not a job that stops for the pen strokes that `large` needs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    (tmp_path / "with/inkml").mkdir(parents=True)
    (tmp_path / "without").mkdir()
    for name in ("with/inkml/train.zip", "with/data.zip", "without/data.zip"):
        (tmp_path / name).touch()
    assert runs._default_preset(tmp_path / archive if archive else None) == preset
    assert ("inkml/train.zip: no such file" in "".join(capsys.readouterr().err.split("\n"))) == (preset == "small")


def test_a_process_ends_with_the_exit_code_and_shows_tracebacks_only_on_request(tmp_path: Path) -> None:
    done = program("data", "--crohme", "nowhere.zip", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("error: nowhere.zip") and done.stderr.count("\n") == 1
    assert "Traceback" in program("data", "--crohme", "nowhere.zip", cwd=tmp_path, HMERBENCH_DEBUG="1").stderr


def test_results_default_to_the_checkouts_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HMERBENCH_RESULTS")
    assert f"runs under {ROOT / 'results'}" in program("ls", cwd=tmp_path).stdout
    assert "no runs under results" in program("ls", cwd=tmp_path, HMERBENCH_RESULTS="results").stdout


def test_unknown_commands_and_options_are_usage_errors(in_process: Run) -> None:
    for arguments, message in (
        ("no-such-command", "No such"),
        ("reproduce --no-such-option", "No such"),
        ("report --attention=-3", "Invalid value for"),
        ("train --seed=-3", "Invalid value for"),
    ):
        code, said = in_process(*arguments.split())
        assert code == 2 and "Traceback" not in said and message in said


def test_error_messages(capsys: pytest.CaptureFixture[str]) -> None:
    again, smaller = "run the same command again\n", "reduce training.batching.pixels"
    full, sealed = (OSError(code, os.strerror(code), "results/x") for code in (errno.ENOSPC, errno.EROFS))
    scarce = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …")
    failed = RuntimeError("CUDA error: device not ready\nCompile with `TORCH_USE_CUDA_DSA`")
    kept = "finished stages and the last checkpoint are kept"
    told = [
        *((kind("a.zip: fix it"), "a.zip: fix it\n") for kind in (UserError, InputError, CheckpointError)),
        (UserError("a\x1b[31m\nb.zip: fix it"), "a\\x1b[31m b.zip: fix it\n"),
        (full, f"results/x: No space left on device; free disk space and {again}"),
        (sealed, "results/x: Read-only file system; choose a writable folder"),
        (scarce, f"CUDA out of memory. Tried to allocate 2.00 GiB; {smaller}"),
        (RuntimeError("CUDA error: out of memory\nmore"), f"CUDA error: out of memory; {smaller}"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), f"CUDA error: CUBLAS_STATUS_ALLOC_FAILED; {smaller}"),
        (failed, f"the GPU failed (CUDA error: device not ready); {kept}: {again}"),
        (RuntimeError("several\nlines"), "RuntimeError: several lines"),
    ]
    for error, words in told:
        assert cli._report(error) == 1
        line = capsys.readouterr().err
        assert line.startswith(f"error: {words}") and line.count("\n") == 1
    for name, extra in {"pandas": "suite", "torch": "recognize", "ray": "ray"}.items():
        cli._report(ModuleNotFoundError(f"No module named '{name}'", name=name))
        assert f"pip install 'hmerbench[{extra}]'" in capsys.readouterr().err


def test_lists_of_names_may_hold_quoted_blanks() -> None:
    for text in ("bttr,'my recipes/a.yaml' 7", 'bttr  "my recipes/a.yaml", 7'):
        assert parse_list(text) == ["bttr", "my recipes/a.yaml", "7"]
    assert parse_list("7 8,7") == ["7", "8"] and parse_list(" ") == [] and parse_list("a\\b #c") == ["a\\b", "#c"]
    with pytest.raises(UserError, match="quotation mark without its partner"):
        parse_list("'my recipes")


def test_markup_in_names_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console.print("results[/b]/[red]x")
    show("preset [/b]", [{"[/b]": "[/b]"}])
    assert capsys.readouterr().out.count("[/b]") == 4


def test_ctrl_c_reports_what_is_kept(tmp_path: Path) -> None:
    """A real SIGINT, in the middle of a training."""
    archive = tiny_archive(tmp_path / "archive")
    tiny_config(archive, {"training": {"epochs": 5000}})
    run = ["--recipe", "bttr", "--preset", str(archive / "tiny.yaml"), "--crohme", str(archive)]
    process = subprocess.Popen(
        [sys.executable, "-m", "hmerbench", "train", *run],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": NO_STORE},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs inherit SIG_IGN
    )
    deadline = time.monotonic() + 300
    while not any(tmp_path.glob("results/local/*/runs/*/*/checkpoint.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    (state,) = tmp_path.glob("results/local/*/runs/*/*/checkpoint.json")
    assert load_checkpoint(RunFolder(state.parent))
    assert "the last checkpoint are kept; run the same command again to resume" in errors and "Traceback" not in errors


def test_a_score_that_is_stopped_promises_nothing(monkeypatch, capsys) -> None:
    """It begins anew the next time, and a file of predictions has no checkpoint."""
    monkeypatch.setattr(sys, "argv", ["hmerbench", "score"])
    assert (cli._report(KeyboardInterrupt()), capsys.readouterr().err) == (130, "\nstopped\n")


def test_weights_read_a_new_test_set_and_are_not_trained_over(tmp_path: Path, monkeypatch, capsys) -> None:
    """A run without a checkpoint, such as a reproduced one, on its archive with one more test set."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NO_STORE)
    archive = tiny_archive(tmp_path / "archive", test=2)
    run = untrained_run(tmp_path / "run", tiny_config(archive))
    shutil.copytree(archive / "data/2014", archive / "data/2023")

    def main(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words, "--crohme", str(archive), "--results", str(tmp_path)])
        return cli.main()

    assert main("predict", str(run.path), "--years", "2023") == 0 and (run.path / "predictions/2023.tsv").exists()
    put_history(run.path, [{}])
    (packed := run.path / "predictions/2014.tsv").write_text("id\ttokens\n")
    assert main("predict", str(run.path)) == 1
    assert "packed with its predictions of 2014, by unrounded weights; `hmerbench evaluate" in capsys.readouterr().err
    assert packed.read_text() == "id\ttokens\n"
    assert main("predict", str(run.path), "--force") == 0 and packed.read_text() != "id\ttokens\n"
    assert main("train", str(run.path)) == 1
    assert "it is trained and has no checkpoint to resume from; --force trains it again" in capsys.readouterr().err
    assert main("train", str(run.path), "--seed", "8") == 1 and "has its own preset" in capsys.readouterr().err
    run.weights_file.rename(run.path / "weights")
    put_score(run.path, "2014", 2, 1)  # as if packed with --no-weights
    assert main("train", str(run.path)) == 1 and "--force trains it again" in capsys.readouterr().err
    assert run.history and (run.path / "scores").exists()
    (run.path / "weights").rename(run.weights_file)
    forget_trainings([run])  # as --force does, which is then interrupted
    assert main("train", str(run.path)) == 0 and len(RunFolder(run.path).history) == run.settings.training.epochs
    (archive / "data/train/caption.txt").write_text("a\tx\n")
    shutil.copy(next((archive / "data/2014/img").iterdir()), archive / "data/train/img/a.bmp")
    shutil.rmtree(archive / "data/train/symLg")
    assert main("train", str(run.path)) == 1 and "their digests differ" in capsys.readouterr().err
