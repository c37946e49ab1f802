"""A run folder returns what was written into it, and never half of it."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report.figures.write import read_runs
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import Epoch, RunFolder
from hmerbench.benchmarks.strict_files import read_plain, read_yaml
from tests.helpers.paths import MEDIUM


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert run.history == [] and run.state is None
    line: Epoch = {"epoch": 1, "step": 3, "loss": 2.5, "lr": 0.1, "seconds": 9.0, "images_per_s": 50.0}
    lines = [line, {**line, "epoch": 2, "more": "is kept"}]
    run.write("history.jsonl", lines)
    run.write("checkpoint.json", {"finished": False, "epoch": 1})
    run.write("best.safetensors", b"\0\1")
    assert run.history == RunFolder(run.path).history == lines  # writing discards what was cached
    assert run.state == {"finished": False, "epoch": 1}
    assert (run.path / "best.safetensors").read_bytes() == b"\0\1"


def test_what_another_process_records_is_seen(tmp_path: Path) -> None:
    driver, worker = RunFolder(tmp_path), RunFolder(tmp_path)
    worker.record_source("a", "1")
    assert driver.sources == {"a": "1"}
    worker.record_source("b", "2")
    assert driver.sources == {"a": "1", "b": "2"}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write("checkpoint.json", {"finished": False, "epoch": 1})
    with pytest.raises(TypeError):
        run.write("checkpoint.json", {"epoch": object()})
    assert run.state == {"finished": False, "epoch": 1} and [path.name for path in tmp_path.iterdir()] == [
        "checkpoint.json"
    ]


def test_the_hashes_are_those_of_the_configuration(tmp_path: Path) -> None:
    hashes = set()
    for seed in (7, 8):
        run = RunFolder(tmp_path / str(seed), config := resolve("comer-fusion", "small", seed))
        run.write("config.yaml", config.to_yaml())
        assert run.digest == config.digest
        hashes.add(run.recipe_hash)
    assert len(hashes) == 1


def test_runs_are_sorted_by_number(tmp_path: Path) -> None:
    names = ["a/small-seed7", "a/small-seed9", "a/small-seed10", "b/hour-seed7"]
    for name in reversed(names):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").touch()
    assert [run.path for run in RunFolder.under(tmp_path)] == [tmp_path / name for name in names]


WRONG: list[tuple[str, tuple[str | int, ...], object, str]] = [
    ("scores/2014.json", ("exact",), "x", "exact: Input should be a valid integer"),
    ("scores/2014.json", ("exact",), 10**6, "contradict each other"),
    ("scores/2014.json", ("le1",), None, "le1: Input should be a valid integer"),
    ("scores/2014.json", ("n",), 0, "contradict each other"),
    ("scores/2014.json", ("exprate",), "45.5", "exprate: Input should be a valid number"),
    ("scores/2014.json", ("signature",), 5, "signature: Input should be a valid string"),
    ("scores/2014.json", ("by_length",), [], "by_length has other buckets"),
    ("scores/2014.json", ("by_length", 0, "n"), None, "by_length.0.n: Input should be a valid integer"),
    ("scores/2014.json", ("ci95",), [1.0], "ci95.1: Field required"),
    ("errors/2014.json", ("symbols",), {}, "symbols: Input should be a valid"),
    ("errors/2014.json", ("symbols", 0, "aligned"), "5", "symbols.0.aligned: Input should be a valid integer"),
    ("environment.json", ("threads",), "two", "threads: Input should be a valid integer"),
    ("environment.json", ("versions",), [], "versions: Input should be an object"),
    ("config.yaml", ("seed",), "seven", "seed: Input should be a valid integer"),
    ("config.yaml", ("recipe",), None, "recipe: Input should be a valid string"),
    ("config.yaml", ("data",), None, "data: Input should be an object"),
    ("config.yaml", ("search", "limit"), "all", "search.limit: Input should be a valid integer"),
    ("history.jsonl", (3, "seconds"), "x", "4.seconds: Input should be a valid number"),
    ("history.jsonl", (0, "epoch"), 1.5, "1.epoch: Input should be a valid integer"),
]


@pytest.mark.parametrize(("name", "where", "value", "words"), WRONG, ids=[f"{row[0]} {row[1]}" for row in WRONG])
def test_a_value_of_the_wrong_type_is_named_in_one_line(
    tmp_path: Path, name: str, where: tuple[str | int, ...], value: object, words: str
) -> None:
    shutil.copytree(MEDIUM, tmp_path / "run", ignore=shutil.ignore_patterns("*.safetensors", "*.zip"))
    whole: Any = (read_yaml if name.endswith(".yaml") else read_plain)(MEDIUM / name)
    part = whole
    for step in where[:-1]:
        part = part[step]
    part[where[-1]] = value
    run = RunFolder(tmp_path / "run")
    run.write(name, yaml.safe_dump(whole) if name.endswith(".yaml") else whole)
    with pytest.raises(UserError, match=f"{re.escape(name)}.*: .*{re.escape(words)}") as caught:
        read_runs(tmp_path)
    assert "\n" not in str(caught.value)
