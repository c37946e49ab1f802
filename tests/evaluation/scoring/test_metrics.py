"""A metric is one entry of METRICS: everything that shows scores then shows it, too."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers.paths import MEDIUM, ROOT

FILE = "evaluation/scoring/metrics.py"
BEFORE = '    Metric("token_exact"'
ENTRY = """    Metric("mine", "mine_rate", lambda row: row.label_errors == 0, "labels alone", heading="my own"),
    Metric(
        "right",
        "right_rate",
        lambda row: row.caption and sum(a == b for a, b in zip(row.tokens or [], row.caption)),
        "right tokens",
        heading="right",
        of=lambda row: row.length,
    ),
    Metric("alephs", "aleph_rate", lambda row: 0, "of none", of=lambda row: row.caption.count("aleph")),
"""
SHOW = """
import json
from dataclasses import asdict
from pathlib import Path

import hmerbench
from hmerbench.benchmarks.report import tables
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.packing import card
from hmerbench.evaluation import commands

commands.score([Path("p.tsv")], ["mine:test"])
run = RunFolder(Path("results/runs/comer-fusion/medium-seed7"))
run.write("scores/2014.json", json.dumps(asdict(hmerbench.score("p.tsv", "mine:test").score)))
built = tables.local(Path("results"))
tables.show(built)
tables.write_tables(built, Path("results/local"))
print(card(run, 1))
"""


def with_another_file(place: Path, name: str, text: str) -> None:
    """Make the package `hmerbench` in `place`: links to the checkout's files, except for this one."""
    folder, source = place / "hmerbench", ROOT / "hmerbench"
    for part in Path(name).parts:
        folder.mkdir()
        for path in source.iterdir():
            if path.name != part:
                (folder / path.name).symlink_to(path.resolve())
        folder, source = folder / part, source / part
    folder.write_text(text)


def test_one_entry_is_enough(tmp_path: Path) -> None:
    text = (ROOT / FILE).read_text()
    assert text.count(BEFORE) == 1
    with_another_file(tmp_path, FILE, text.replace(BEFORE, ENTRY + BEFORE))
    (tmp_path / "mine/test").mkdir(parents=True)
    (tmp_path / "mine/test/caption.txt").write_text("a\tx ^ { 2 }\nb\tx + 1\n")
    (tmp_path / "p.tsv").write_text("id\ttokens\na\tx ^ { 2 }\nb\tx + 2\n")
    old, new = (tmp_path / f"results/{kind}/comer-fusion/medium-seed7" for kind in ("reproduced", "runs"))
    for run in (old, new):
        (run / "scores").mkdir(parents=True)
        for kept in ("config.yaml", "history.jsonl", "environment.json"):
            (run / kept).symlink_to(MEDIUM / kept)
    (old / "scores/2014.json").symlink_to(MEDIUM / "scores/2014.json")  # older than the metric
    done = subprocess.run([sys.executable, "-c", SHOW], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    terminal, shown, below = done.stdout.partition("labels alone     1 of 2")
    heading = r"\| set \| n \| ExpRate \| .*\| my own \| .*95 % interval over images \|"
    assert terminal and shown and re.search(heading, below)
    scored = json.loads((new / "scores/2014.json").read_text())
    assert (scored["mine"], scored["mine_rate"], scored["right"], scored["right_rate"]) == (1, 50.0, 7, 87.5)
    assert scored["alephs"] is scored["aleph_rate"] is None  # of nothing
    assert "right tokens     7           87.50 %" in below and "of none" not in below
    table = csv.DictReader((tmp_path / "results/local/table2.csv").open())
    rates = {row["source"]: (row["mine_rate"], row["right_rate"]) for row in table if row["model"] == "CoMER"}
    assert rates == {"reported": ("", ""), "reproduced": ("", ""), "local": ("50.00", "87.50")}
    assert re.search(r"\$\\le 3\$ &.* my own & right (&|\\\\)", (tmp_path / "results/local/table2.tex").read_text())
    assert "| `mine_rate` | the rate, in percent, that" in (tmp_path / "results/local/table2.md").read_text()
