"""The doctor detects planted faults; `ls` shows the progress of each run without loading torch."""

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from hmerbench.benchmarks import doctor, environment
from hmerbench.benchmarks.cli import main as cli
from hmerbench.benchmarks.doctor import Check
from hmerbench.benchmarks.environment import best_device
from hmerbench.benchmarks.errors import UserError, gpu_failure
from hmerbench.benchmarks.runs import listing
from hmerbench.benchmarks.tracking import tracking_store
from tests.helpers.made_up import put_score
from tests.helpers.paths import ROOT, SHARED
from tests.helpers.tiny import tiny_archive


def only(checks: Iterator[Check], name: str = "") -> Check:
    (check,) = [check for check in checks if name in ("", check.name)]
    return check


def assert_fixable(check: Check, status: str, words: str) -> None:
    assert check.status == status and words in check.words and check.fix


def test_every_change_of_the_code_is_another_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other code has read is then read again."""
    monkeypatch.setattr(environment, "CHECKOUT", tmp_path)
    assert environment.revision() is None  # no checkout
    known, new = tmp_path / "pyproject.toml", tmp_path / "models/inner/new.py"
    known.write_text("1")
    new.parent.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    found = [environment.revision()]
    for path, text in ((known, "2"), (known, "3"), (new, "4"), (new, "5")):
        path.write_text(text)
        found.append(environment.revision())
    assert [re.fullmatch(r"[0-9a-f]{40}(\+[0-9a-f]{8})?", name or "") is not None for name in found] == [True] * 5
    assert "+" not in str(found[0]) and len({*found}) == 5 and environment.revision() == found[-1]
    subprocess.run([*git, "rm", "-q", "-f", "pyproject.toml"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    assert environment.revision() is None  # installed within another project


def test_the_suite_names_itself_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs trained in a checkout alone were taken for those of a program that is lost (`RunFolder.external`)."""
    version = environment.metadata.version("hmerbench")
    monkeypatch.setattr(environment.metadata, "version", Mock(side_effect=environment.metadata.PackageNotFoundError))
    assert environment.environment(torch.device("cpu"))["versions"] == {"hmerbench": version}


# ------------------------------------------------------------------------------------------------ the doctor


def test_this_machine_can_run_the_main_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    checks = doctor.examine(None, tmp_path)
    assert [check for check in checks if check.status == "broken" or "check failed" in check.words] == []
    assert {"python", "packages", "torch", "scorer", "data", "disk", "tracking"} <= {check.name for check in checks}
    assert list(tmp_path.iterdir()) == []


def test_python_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)  # type: ignore[arg-type]
    assert {"python", "memory"} <= {check.name for check in doctor.machine()}
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: {"torch": "2.4.0", "mlflow": None}.get(name, real(name)))
    core, suite = (check for check in doctor.packages() if check.name == "packages")
    assert_fixable(core, "broken", "torch 2.4.0")
    assert_fixable(suite, "warn", "mlflow missing")
    assert ["hmerbench[recognize]" in core.fix, "hmerbench[suite]" in suite.fix] == [True, True]


@pytest.mark.parametrize(
    ("version", "built", "usable", "names"),
    [
        ("2.13.0", None, False, []),
        ("2.11.0", "13.0", True, []),
        ("2.10.1", None, False, ["torch"]),
        ("2.14.0", None, False, ["torch"]),
        ("2.13.0", "13.0", False, ["devices"]),
    ],
)
def test_torch_and_its_device(version: str, built: str | None, usable: bool, names: list[str], monkeypatch) -> None:
    cuda = SimpleNamespace(is_available=lambda: usable, device_count=lambda: 1, get_device_name=lambda _: "a GPU")
    fake = SimpleNamespace(__version__=version, cuda=cuda, version=SimpleNamespace(cuda=built))
    monkeypatch.setitem(sys.modules, "torch", fake)
    warned = [check for check in doctor.torch_and_devices() if check.status == "warn"]
    assert [check.name for check in warned] == names and all(check.fix for check in warned)


def test_the_text_of_the_language_models(tmp_path: Path) -> None:
    assert only(doctor.text(None)).status == "info"
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("a b\nc\n")
    assert_fixable(only(doctor.text(tmp_path)), "warn", "test.txt: there is no such file")
    (tmp_path / "test.txt").write_text("a\nb\n")
    found = only(doctor.text(tmp_path))
    assert_fixable(found, "warn", "5 + 5 + 4 words, 5 distinct: not the paper's Penn Treebank")
    if (ptb := SHARED / "ptb").is_dir():
        words = "929,589 + 73,760 + 82,430 words, 10,000 distinct: the Penn Treebank"
        assert only(doctor.text(ptb)) == Check("text", "ok", f"{ptb}, {words}")


def test_failing_imports_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, check in (("torch", doctor.torch_and_devices), ("cv2", doctor.opencv)):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
        assert_fixable(only(check()), "broken", "cannot be imported")


def test_conflicting_libraries_and_lack_of_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "4.10" if name == "opencv-python" else None)
    assert_fixable(only(doctor.opencv()), "warn", "opencv-python overwrites")
    maps = tmp_path / "maps"
    monkeypatch.setattr(doctor, "MAPS", maps)
    maps.write_text("7f00 r-xp /a/torch/lib/libgomp.so.1\n7f01 r-xp /b/sklearn/libgomp-a34b.so.1.0\n")
    assert only(doctor.openmp()).status == "ok"
    maps.write_text("7f00 r-xp /a/torch/lib/libgomp.so.1\n7f01 r-xp /c/lib/libiomp5.so\n")
    assert_fixable(only(doctor.openmp()), "warn", "gomp, iomp5")
    usage = SimpleNamespace(total=64 << 20, free=100 << 20)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert_fixable(only(doctor.shared_memory()), "warn", "0.06 GiB")
    assert_fixable(only(doctor.disk(tmp_path / "not/made/yet")), "broken", "0.10 GiB free")


def test_unwritable_results_and_bad_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", Mock(side_effect=OSError(30, "Read-only file system")))
    assert_fixable(only(doctor.disk(tmp_path)), "broken", "Read-only")
    (tmp_path / "junk.zip").write_bytes(b"PK junk")
    for path in ("junk.zip", "nowhere.zip"):
        assert_fixable(only(doctor.data(tmp_path / path, tmp_path)), "broken", path)
        assert only(doctor.data(tmp_path / path, tmp_path)).fix != "make crohme"  # but the fault's own
    own = tiny_archive(tmp_path / "own")
    assert_fixable(only(doctor.data(own, tmp_path)), "warn", "foreign archive")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert "local/foreign-" in only(doctor.tracking(own, tmp_path)).words  # where runs on it go
    assert only(doctor.tracking(tmp_path / "junk.zip", tmp_path)).status == "ok"  # as `data` reports the archive


def test_missing_scripts_fail_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("LGEVAL_BIN", str(tmp_path))
    with pytest.raises(UserError, match="scorer: broken"):
        cli.app(["doctor", "--json", "--results", str(tmp_path)], standalone_mode=False)
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["scorer"]["status"] == "broken" and "unset LGEVAL_BIN" in checks["scorer"]["fix"]
    assert checks["python"]["status"] == "ok"


# ------------------------------------------------------------------------------------------ servers, databases


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response({"/health": 200, "/busy/health": 503}.get(self.path, 404))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def test_a_tracking_server(server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{server.server_port}"
    for uri, status in ((f"http://me:secret@{address}/", "ok"), (f"http://{address}/busy", "warn")):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        check = only(doctor.tracking(None, tmp_path))
        assert check.status == status and "secret" not in check.words + check.fix
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///tmp/mlruns")
    assert_fixable(only(doctor.tracking(None, tmp_path)), "warn", "a folder")


def test_a_database_that_names_another_place_for_its_artifacts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE experiments (name, artifact_location)")
        database.execute("INSERT INTO experiments VALUES ('hmerbench', 'file:///before/results/mlartifacts')")
    moved, usable = doctor.tracking(None, tmp_path)
    assert usable.status == "ok" and "/before/results/mlartifacts" in moved.words and str(tmp_path) in moved.fix
    assert_fixable(moved, "warn", "mlflow.db")


def test_servers_that_are_down_or_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        assert_fixable(only(doctor.tracking(None, tmp_path)), "warn", "timed out")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    assert_fixable(only(doctor.tracking(None, tmp_path)), "warn", "refused")
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 1)  # the driver's timeout is in whole seconds
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg2://me:secret@127.0.0.1:{port}/runs")
    check = only(doctor.tracking(None, tmp_path))
    assert_fixable(check, "warn", "refused")
    assert "secret" not in check.words


def test_a_database_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(tracking_store, "ANSWER_SECONDS", 0.2)
    assert "will be made" in only(doctor.tracking(None, tmp_path)).words
    (tmp_path / "local/embedded").mkdir(parents=True)
    with closing(sqlite3.connect(tmp_path / "local/embedded/mlflow.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE runs (name)")
        assert only(doctor.tracking(None, tmp_path)).status == "ok"
        database.execute("BEGIN EXCLUSIVE")
        assert_fixable(only(doctor.tracking(None, tmp_path)), "warn", "locked")


def test_a_failing_check_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("packages", "torch_and_devices", "opencv", "scorer"):
        monkeypatch.setattr(doctor, name, Mock(side_effect=RuntimeError("out of order")))
    checks = doctor.examine(None, tmp_path)
    assert sum("out of order" in check.words for check in checks) == 4 and checks[-1].name == "tracking"


# ------------------------------------------------------------------------------------------------- the list


def make(folder: Path, state: dict | None, *files: str) -> Path:
    """A run folder with these files, of increasing modification times."""
    folder.mkdir(parents=True)
    names = {"recipe": folder.parent.name, "preset": "smoke", "seed": 7, "data": {"name": "crohme"}}
    (folder / "config.yaml").write_text(json.dumps(names | {"training": {"epochs": 10}}))
    if state is not None:
        (folder / "checkpoint.json").write_text(json.dumps(state))
    for number, name in enumerate(files):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
        if name == "scores/2014.json":
            put_score(folder, "2014", 200, 71)
        os.utime(folder / name, (1000 + number, 1000 + number))
    return folder


def test_progress_of_runs(tmp_path: Path) -> None:
    done, best = {"finished": True, "epoch": 10}, "best.safetensors"
    predicted, scored = "predictions/2014.tsv", "scores/2014.json"
    make(tmp_path / "runs/a/untrained", None)
    make(tmp_path / "runs/a/training", {"finished": False, "epoch": 4}, best)
    make(tmp_path / "runs/a/trained", done, best)
    make(tmp_path / "runs/a/recognized", done, best, predicted, "predictions/2016.tsv")
    make(tmp_path / "runs/a/scored", done, best, predicted, scored, "predictions/2016.tsv")
    for name, made_from_others in (("trained again", predicted), ("recognized again", scored)):
        folder = make(tmp_path / f"runs/b/{name}", done, best, predicted, scored)
        (folder / "sources.json").write_text(json.dumps({made_from_others: "another digest"}))
    make(tmp_path / "runs/b/copied", done, scored, predicted, best)  # clocks say nothing
    make(tmp_path / "reproduced/a/committed", None, scored, best, predicted)
    make(tmp_path / "local/embedded/runs/a/damaged", {})
    listed = {Path(run["folder"]).name: (run["status"], run["words"]) for run in listing.runs(tmp_path)}
    assert listed == {
        "untrained": ("untrained", ""),
        "training": ("training", "4 of 10 epochs"),
        "trained": ("trained", "10 epochs"),
        "recognized": ("recognized", "2014, 2016"),
        "scored": ("scored", "2014 35.50; 2016 not scored"),
        "trained again": ("trained", "10 epochs"),
        "recognized again": ("recognized", "2014"),
        "copied": ("scored", "2014 35.50"),
        "committed": ("scored", "2014 35.50"),
        "damaged": (
            "damaged",
            f"{tmp_path}/local/embedded/runs/a/damaged/checkpoint.json: damaged (epoch: Field required); "
            "restore it, or delete this run folder",
        ),
    }


def test_ls_lists_everything_without_slow_imports(tmp_path: Path) -> None:
    make(tmp_path / "runs/comer-self/one", {"finished": False, "epoch": 4})
    for option in ([], ["--json"]):
        arguments = ["ls", "--results", str(tmp_path), *option]
        code = (
            "import sys; from hmerbench.benchmarks.cli.main import app\n"
            f"app({arguments}, standalone_mode=False)\n"
            "print([name for name in ('torch', 'pandas', 'mlflow', 'numpy') if name in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stderr == "[]\n"
        if option:
            found = json.loads(done.stdout)
            assert found["runs"][0]["words"] == "4 of 10 epochs" and "paper" in found["presets"]
        else:
            assert "training 4 of 10 epochs" in done.stdout and "CoMER (Fusion)" in done.stdout


@pytest.mark.parametrize(("load", "threads", "warned"), [(5.0, "", True), (5.0, "1", False), (0.0, "", False)])
def test_a_busy_machine_is_a_warning(monkeypatch, load, threads, warned):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv("OMP_NUM_THREADS", threads) if threads else monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    checks = [check for check in doctor.machine() if check.name == "load"]
    assert [check.status for check in checks] == ["warn"] * warned
    assert all("load 5.0" in check.words and "OMP_NUM_THREADS=1" in check.fix for check in checks)


def test_an_outdated_driver_is_an_error(monkeypatch):
    """Training must not fall back to the CPU silently."""
    words = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by …"

    def fails(reason: str) -> None:
        monkeypatch.setattr(torch.cuda, "init", Mock(side_effect=RuntimeError(reason)))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # Ray sets it to nothing in processes without a GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    fails(words)
    old = r"^The NVIDIA driver .* \(found version 11040\); update it, or set CUDA_VISIBLE"
    with pytest.raises(UserError, match=old):
        best_device()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert best_device() == torch.device("cpu")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    fails("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU")
    assert best_device() == torch.device("cpu")
    monkeypatch.setenv("HMERBENCH_ON_GPU", "1")  # of a job
    with pytest.raises(RuntimeError, match=r"^CUDA error: Found no NVIDIA driver on your system$") as gone:
        best_device()
    assert gpu_failure(gone.value)


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", False),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", False),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", False),
    ],
)
def test_a_library_tells_of_a_lost_gpu_too(said: str, lost: bool) -> None:
    assert gpu_failure(RuntimeError(f"{said}\nmore")) == said * lost


def test_tf32_and_cudnn_attention_are_off(monkeypatch):
    """torch's convolutions use TF32 by default; planning cuDNN attention takes longer than a search."""
    switches = (torch.backends.cudnn, "allow_tf32"), (torch.backends.cuda.matmul, "allow_tf32")
    before, attention = [getattr(*switch) for switch in switches], torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        for where, name in switches:
            setattr(where, name, True)
        assert best_device(1) == torch.device("cuda:1")
        assert not any(getattr(*switch) for switch in switches) and not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(attention)
        for (where, name), value in zip(switches, before, strict=True):
            setattr(where, name, value)
