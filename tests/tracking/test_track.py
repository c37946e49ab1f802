"""A store that fails costs one warning and next to no time, beside a training, too; a run is removed whole or not."""

import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from logging import WARNING, getLogger
from pathlib import Path

import pytest
from mlflow import MlflowClient

from hmerbench.benchmarks import files
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.runs import listing
from hmerbench.benchmarks.tracking import track as tracking
from hmerbench.benchmarks.tracking import tracking_store
from tests.helpers.made_up import put_state
from tests.helpers.paths import NO_STORE
from tests.helpers.runs import address_in, all_runs, check_complete, import_later, logged, measured, put_run, until


@contextmanager
def changed(change: Callable[[Path], object], results: Path, _: pytest.MonkeyPatch) -> Iterator[None]:
    database = results / "mlflow.db"
    content = database.read_bytes()
    change(database)
    yield
    database.write_bytes(content)


def to_a_newer_schema(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'fedcba987654'")


@contextmanager
def locked(results: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(tracking_store, "ANSWER_SECONDS", 0.1)
    with closing(sqlite3.connect(results / "mlflow.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def full(largest_file: Callable[[Path], int], results: Path, _: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit the size of files: for the writer, the same as a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file(results), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def for_a_new_database(results: Path) -> int:
    (results / "mlflow.db").unlink()
    return 100_000


def for_artifacts(results: Path) -> int:
    (predictions,) = results.glob("runs/*/*/predictions/2014.tsv")
    predictions.write_bytes(bytes(4_000_000))
    return 3_000_000


@contextmanager
def at(address: str, _: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setenv("MLFLOW_TRACKING_URI", address)
    yield


@contextmanager
def not_installed(_: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setitem(sys.modules, "mlflow", None)
    patch.delitem(sys.modules, "hmerbench.benchmarks.tracking.mirror", raising=False)
    yield


FAILURES = {  # and words of the warning
    "no_database": (partial(changed, lambda path: path.write_bytes(b"this is no database" * 100)), "not a database"),
    "cut_short": (partial(changed, lambda path: os.truncate(path, path.stat().st_size // 3)), "malformed"),
    "locked": (locked, "database is locked"),
    "newer_schema": (partial(changed, to_a_newer_schema), "of another MLflow"),
    "full_for_the_database": (partial(full, lambda results: (results / "mlflow.db").stat().st_size), ""),
    "full_for_a_new_database": (partial(full, for_a_new_database), ""),
    "full_for_artifacts": (partial(full, for_artifacts), "File too large"),
    "unreachable": (partial(at, "http://somebody:secret@127.0.0.1:9"), "refused"),
    "no_such_store": (partial(at, "nosuch://store"), "nosuch"),
    "not_installed": (not_installed, "mlflow is not installed"),
}


@pytest.mark.parametrize(("failure", "words"), FAILURES.values(), ids=FAILURES)
def test_a_failure_costs_one_warning_and_an_import_catches_up(failure, words, tmp_path, monkeypatch, capsys) -> None:
    folder = put_run(tmp_path, "bttr", epochs=60)
    with monkeypatch.context() as patch, failure(tmp_path, patch):
        for _ in range(2):
            assert tracking.track(folder) is None
            tracking._left_alone_until.clear()
    warning = capsys.readouterr().err
    assert warning.startswith("warning: ") and warning.count("\n") == 1 and words in warning and "secret" not in warning
    assert failure is not FAILURES["full_for_a_new_database"][0] or not (tmp_path / "mlflow.db").exists()
    import_later(folder, address_in(tmp_path))
    assert not capsys.readouterr().err


def test_a_read_only_database_is_one_warning(folder: Path, store: str, tmp_path: Path) -> None:
    unprivileged = ["setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override"]  # root may write to it
    line = [*(unprivileged if os.getuid() == 0 else ()), sys.executable, "-m", "hmerbench", "track", str(folder)]
    (tmp_path / "mlflow.db").chmod(0o444)
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.count("warning: ") == 1 and "readonly database" in done.stderr
    assert done.stderr.splitlines()[-1] == f"error: {folder}: it was not logged; the warning above says why"
    (tmp_path / "mlflow.db").chmod(0o644)
    import_later(folder, store)


@pytest.fixture
def mute(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server that lets every connection in and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        server.settimeout(60)
        yield server


def test_a_server_that_never_answers_delays_nothing(mute: socket.socket, folder, store, monkeypatch, capsys) -> None:
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 0.2)
    for _ in range(3):
        assert tracking.track(folder) is None
    mute.accept()
    mute.setblocking(False)
    with pytest.raises(BlockingIOError):  # after this first time, it was skipped for a while
        mute.accept()
    assert capsys.readouterr().err.count("warning: ") == 1
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    import_later(folder, store)


def test_other_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        tracking.track(tmp_path / "runs/bttr/nothing")
    (folder / "history.jsonl").write_text('{"epoch": 1')
    with pytest.raises(UserError, match=r"history\.jsonl: damaged or incomplete .*; restore it"):
        tracking.track(folder)


def test_mlflow_is_quiet(folder: Path) -> None:
    logged(folder)
    assert getLogger("mlflow").level >= WARNING


TRAINING = "import sys, time; from pathlib import Path; from hmerbench.benchmarks.tracking.track import live\n"
TRAINING += "with live(Path(sys.argv[1]), seconds=0.1): time.sleep(float(sys.argv[2]))\n"


@pytest.mark.long
def test_live_mirrors_and_measures_until_the_training_is_killed(client: MlflowClient, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    folder = put_run(tmp_path, "bttr", finished=False)
    training = subprocess.Popen([sys.executable, "-c", TRAINING, folder, "600"])
    try:
        (run,) = until(lambda: measured(client, "bttr"))
        assert run.info.status == "RUNNING"
    finally:
        training.kill()
        training.wait()
    until(lambda: client.get_run(run.info.run_id).info.status == "KILLED")
    assert len(all_runs(client)) == 2  # it and its table
    put_state(folder, True)
    assert logged(folder) == run.info.run_id
    check_complete(client, run.info.run_id, folder)


def test_errors_of_the_training_pass_through(folder: Path) -> None:
    with pytest.raises(KeyError, match="the training fails"), tracking.live(folder):
        raise KeyError("the training fails")


def test_a_training_imports_no_mlflow_and_ends_its_mirror(folder: Path) -> None:
    code = f"{TRAINING}assert not {{'mlflow', 'sqlalchemy', 'torch'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, folder, "0"], check=True, timeout=60)


def test_a_server_that_never_answers_does_not_keep_a_training_from_ending(mute, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(tracking, "STOP_SECONDS", 0.1)
    with tracking.live(folder, seconds=0.01):
        connection, _ = mute.accept()
    with connection:
        connection.settimeout(2)  # less than the mirror would wait for an answer
        while connection.recv(4096):  # its request, and the end, as it is killed
            pass


@pytest.mark.parametrize(("program", "warnings"), [("false", 0), ("nowhere", 1)])
def test_a_mirror_that_dies_or_cannot_start_does_not_affect_the_training(
    program: str, warnings: int, folder: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which(program) or program)
    went_on = False
    with tracking.live(folder):
        time.sleep(0.05)
        went_on = True
    assert went_on and capsys.readouterr().err.count("warning: ") == warnings


def test_a_warning_of_the_mirror_reaches_the_training_once(folder: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NO_STORE)
    with tracking.live(folder, seconds=0.01):
        until(lambda: tracking._warned)
    assert tracking.track(folder) is None
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: MLflow at {NO_STORE} is not usable") and warning.count("\n") == 1


def test_a_run_made_by_mistake_is_removed_with_all_that_was_made_for_it(folder: Path, client, tmp_path) -> None:
    mistake, run_id = put_run(tmp_path, "comer-fusion"), logged(folder)
    logged(mistake)
    assert len(all_runs(client)) == 3 and tracking.remove(mistake) is True
    left = all_runs(client)
    assert {run.info.run_id for run in left} > {run_id} and len(left) == 2  # the table has another row
    assert folder.exists() and not mistake.exists()
    with files.locked(folder), pytest.raises(UserError, match="is working in it"):
        tracking.remove(folder)
    assert tracking.remove(folder) is True and all_runs(client) == []
    assert tracking.remove(put_run(tmp_path, "bttr")) is False  # it was not logged


def test_a_removal_that_is_killed_leaves_no_run_behind(folder: Path, tmp_path: Path, monkeypatch) -> None:
    """Without its last test set, say, it would be listed as a run that was scored on the others."""
    monkeypatch.setattr(tracking, "with_store", lambda *_: True)
    other = put_run(tmp_path, "bttr", seed=8)

    def killed(folder: Path) -> None:
        next(Path(folder).glob("scores/*.json")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        tracking.remove(folder)
    assert [run["folder"] for run in listing.runs(tmp_path)] == [str(other)]
    assert tracking.remove(other) and not [*other.parent.iterdir()]  # with what the first had left


def test_nothing_is_removed_while_the_store_is_out_of_reach(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NO_STORE)
    with pytest.raises(UserError, match="nothing was deleted"):
        tracking.remove(folder)
    assert (folder / "config.yaml").exists()


def test_a_reproduced_run_is_not_removed(folder: Path, tmp_path: Path) -> None:
    committed = shutil.copytree(folder, tmp_path / "reproduced/bttr" / folder.name)
    with pytest.raises(UserError, match="a committed run"):
        tracking.remove(committed)
    with pytest.raises(UserError, match="not a run folder"):
        tracking.remove(tmp_path)
    assert committed.exists() and folder.exists()
