"""Folders and files from strangers: nothing outside is written, nothing hangs, nothing is believed unread."""

import os
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.ink import read_symbols
from hmerbench.benchmarks.data.normalize_image import decoded
from hmerbench.benchmarks.data.passport import passport
from hmerbench.benchmarks.data.samples import Sample, with_ink
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import locked
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.packing import pack
from hmerbench.benchmarks.strict_files import read_yaml, to_yaml
from hmerbench.evaluation.stores import ZipStore
from tests.helpers.ink import inkml, packed
from tests.helpers.paths import MEDIUM
from tests.helpers.tiny import tiny_archive

# ten levels of ten: 10**10 values
BOMB = "a0: &a0 x\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]\n" for k in range(1, 11))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder below results/runs."""
    folder = tmp_path / "results/runs/comer-fusion/medium-seed7"
    return Path(shutil.copytree(MEDIUM, folder, ignore=shutil.ignore_patterns("*.safetensors")))


@pytest.mark.parametrize("key", ["recipe", "preset"])
@pytest.mark.parametrize(
    "name", ["../../victim", "..", "a/b", "/tmp/x", "a\nb", "\x1b[31m", "$\\frac{x$", "a|b", "[/b]"]
)
def test_a_name_that_is_no_file_name_is_refused(run: Path, tmp_path: Path, key: str, name: str) -> None:
    victim = tmp_path / "victim/keep.txt"
    victim.parent.mkdir()
    victim.write_text("mine")
    text = read_yaml(run / "config.yaml")
    (run / "config.yaml").write_text(to_yaml(text | {key: name}))
    for read in (pack, lambda folder: RunFolder(folder).run_key, lambda folder: RunFolder(folder).settings):
        with pytest.raises(UserError, match=rf"config\.yaml.*: .*{key}: String should match") as caught:
            read(run)
        assert "\n" not in str(caught.value)
    assert victim.read_text() == "mine" and not (tmp_path / "results/reproduced").exists()


def test_a_preset_of_any_file_name_stays_below_runs(tmp_path: Path) -> None:
    for name in ("...yaml", "a|b.yaml", "$x.yaml"):
        (tmp_path / name).write_text("base: smoke")
        with pytest.raises(UserError, match="preset: String should match"):
            resolve("bttr", str(tmp_path / name), 7)


def test_yaml_that_multiplies_is_refused(run: Path) -> None:
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + BOMB)
    for read in (lambda: read_yaml(run / "config.yaml"), lambda: RunFolder(run).settings):
        with pytest.raises(UserError, match=r"config\.yaml: this is not YAML \(line \d+: an alias"):
            read()


READERS: dict[str, Callable[[Path], object]] = {
    "data.zip": open_archive,
    "preset.yaml": read_yaml,
    "config.yaml": lambda path: RunFolder(path.parent).settings,
    "history.jsonl": lambda path: RunFolder(path.parent).history,
    "image.png": lambda path: decoded(path, str(path)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=rf"{name}: (this is a pipe or device; give a file|not a file; give the path)"):
        READERS[name](tmp_path / name)


def test_a_lock_that_is_a_link_keeps_its_target(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    (tmp_path / ".training").symlink_to("precious.txt")
    with pytest.raises(UserError, match=r"\.training: this is a link"), locked(tmp_path):
        pass
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_a_cycle_through_the_folder_above_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/mine.yaml").write_text("base: ../below/mine.yaml")
    with pytest.raises(UserError, match="remove one `base`") as caught:
        resolve("bttr", str(tmp_path / "below/mine.yaml"), 7)
    assert len(str(caught.value)) < 500


def test_nested_mathematics_is_read_in_linear_time() -> None:
    symbol = inkml("x")
    opened, closed = '<math xmlns="http://www.w3.org/1998/Math/MathML">', "</math>"
    began = time.process_time()
    symbols = read_symbols(symbol.replace(opened, opened * 20_000).replace(closed, closed * 20_000).encode())
    assert [found.token for found in symbols] == ["x"] and time.process_time() - began < 2


@pytest.mark.parametrize("content", ["", "# nothing\n", "garbage\n", "\x00\x01\x02"])
def test_garbage_is_no_ground_truth(tmp_path: Path, content: str) -> None:
    archive = tiny_archive(tmp_path / "archive")
    path = next((archive / "data/2014/symLg").glob("*.lg"))
    path.write_text(content)
    with pytest.raises(UserError, match=rf"data/2014/symLg/{path.name}: .*; restore it") as caught:
        passport(open_archive(archive))
    assert "\n" not in str(caught.value)


def test_unusable_pen_strokes_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = [Sample(f"a{k}", ("x",), np.zeros((50, 50), np.uint8)) for k in range(4)]
    store = packed(tmp_path / "train.zip", {sample.id: inkml("x") for sample in samples})
    assert all(sample.ink for sample in with_ink(samples, store)) and not capsys.readouterr().err.strip()
    with zipfile.ZipFile(tmp_path / "half.zip", "w") as archive:
        for k in range(4):
            archive.writestr(f"a{k}.inkml", inkml("x") if k % 2 else "garbage")
    read = with_ink(samples, ZipStore(tmp_path / "half.zip", root=""))
    assert [sample.ink is not None for sample in read] == [False, True, False, True]
    assert "half.zip:penstrokesof2of4expressions" in "".join(capsys.readouterr().err.split())  # wherever it wraps
