"""A row that was trained on a CPU and on a GPU: what its document says of both follows from their files."""

from statistics import fmean
from typing import Any

from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_table
from tests.helpers.paths import ROOT

CONTROL = RunFolder(ROOT / "results/control/comer-fusion/large-seed7")
ON_GPU = RunFolder(ROOT / "results/speed/h200/comer-fusion/large-seed7")
EARLIER = RunFolder(ROOT / "results/reproduced/comer-fusion/large-seed7")
TEXT = (ROOT / "results/control/README.md").read_text()


def losses(run: RunFolder) -> list[float]:
    return [line["loss"] for line in run.history]


def test_both_had_the_same_settings_and_took_as_many_steps():
    assert CONTROL.settings == ON_GPU.settings
    assert [line["step"] for line in CONTROL.history] == [line["step"] for line in ON_GPU.history]
    assert f"the same {CONTROL.history[-1]['step']:,} steps" in TEXT


def test_they_ran_on_what_their_folders_say():
    here, there = (dict[str, Any](run.environment) for run in (CONTROL, ON_GPU))
    torch = [f"{ran['versions']['torch'].partition('+')[0]}, {ran['python']}" for ran in (here, there)]
    assert f"| torch, Python | {' | '.join(torch)} |" in TEXT
    assert f"| revision | {here['revision'][:7]} | {there['revision'][:7]} |" in TEXT
    assert (here["workers"], here["graphs"], here["gpu"]) == (0, False, False)
    assert (there["workers"], there["graphs"], there["gpu"]) == (2, True, True)


def test_losses_are_those_of_the_histories():
    rows = zip(range(1, 17), losses(CONTROL), losses(ON_GPU), strict=True)
    for epoch, here, there in rows:
        assert f"| {epoch} | {here:.4f} | {there:.4f} | {here - there:+.4f} |" in TEXT
    furthest = max(abs(here / there - 1) for here, there in zip(losses(CONTROL), losses(ON_GPU), strict=True))
    assert f"at most {100 * furthest:.1f} %" in TEXT
    apart = [here - there for here, there in zip(losses(CONTROL), losses(ON_GPU), strict=True)]
    assert f"higher in {sum(each > 0 for each in apart)} of 16 epochs, by {fmean(apart):.4f} on the mean of all" in TEXT
    rounding = next(row for row in read_table(ROOT / "results/speed/equivalence.csv") if row["way"] == "disturbed")
    assert f"largest relative difference of an epoch is {100 * furthest:.2f} %" in TEXT
    assert f"by at most {100 * float(rounding['loss_difference']):.2f} % in [{rounding['steps']} steps]" in TEXT


def test_times_are_those_of_the_histories():
    here, there = (sum(line["seconds"] for line in run.history) for run in (CONTROL, ON_GPU))
    how = "most of them beside other programs, stopped and resumed several times"
    assert f"| {here / 3600:.1f} hours, {how} | {there / 60:.1f} minutes," in TEXT


def test_rates_are_those_of_the_scores():
    for run in (CONTROL, EARLIER):
        found = [f"{score.exprate:.2f}" for score in run.scores.values()]
        assert f"| {' | '.join(found)} | {run.exprate:.2f} |" in TEXT
