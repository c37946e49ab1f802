"""Faults in the mechanisms that the published numbers rest on: the regression gate, or a test, must see every one.

`make faults` plants them one by one (planting.py), measures the part of the fixed job that is to see it or runs the
test, and writes results/faults.md. As this takes minutes, `make test` only checks that every fault can still be
planted: whoever changes these lines plants the fault in the new ones.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.synthetic import embedded
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.regression_gate import Values, baseline, fixed_job
from hmerbench.benchmarks.regression_gate.presets import handwriting
from tests.helpers.paths import ROOT
from tests.regression_gate.faults import FAULTS
from tests.regression_gate.planting import Fault, planted


class Job:
    """The parts of the fixed job, small, and what each is without a fault."""

    def __init__(self, folder: Path) -> None:
        self.typeset = folder / "typeset.zip"
        typeset = open_archive(embedded(self.typeset, train=64, test=100))
        self.parts: dict[str, Callable[[], Values]] = fixed_job.parts_of_numerics(
            typeset, handwriting(folder / "written", 48)
        ) | {"scores": lambda: fixed_job.scores(open_archive(self.typeset), None, folder)}
        self.right = cache(lambda part: self.parts[part]())
        self.rows = dict[Fault, str]()

    def differing(self, part: str) -> list[str]:
        """The items of a part that differ now."""
        now = self.parts[part]()
        return [
            item for item, value in self.right(part).items() if baseline.measured_item(item, value, now[item]).fails
        ]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    job = Job(tmp_path_factory.mktemp("job"))
    yield job
    if len(job.rows) == len(FAULTS):
        head = ["| mechanism | seen by | what differs or fails |", "|:---|:---|:---|"]
        rows = [f"| {fault.mechanism} | {fault.seen_by.partition('::')[0]} | {job.rows[fault]} |" for fault in FAULTS]
        write_atomically(ROOT / "results/faults.md", "\n".join([*head, *rows]) + "\n")


def passes(test: str) -> bool:
    """Whether a test passes, run within this process, in which the fault is."""
    quiet = ("-q", "--no-header", "--show-capture=no", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist")
    code = pytest.main([*quiet, str(ROOT / test)])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"{test}: {code!r}"
    return code == pytest.ExitCode.OK


def test_every_fault_can_be_planted() -> None:
    for fault in FAULTS:
        with planted(fault):
            pass


@pytest.mark.faults
@pytest.mark.parametrize("seen_by", dict.fromkeys(fault.seen_by for fault in FAULTS))
def test_nothing_is_seen_without_a_fault(job: Job, seen_by: str) -> None:
    assert passes(seen_by) if "::" in seen_by else job.differing(seen_by) == []


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.mechanism)
def test_the_fault_is_seen(job: Job, fault: Fault) -> None:
    if "::" in fault.seen_by:
        with planted(fault):
            assert not passes(fault.seen_by)
        job.rows[fault] = fault.seen_by.partition("::")[2]
        return
    count = len(job.right(fault.seen_by))
    with planted(fault):
        items = job.differing(fault.seen_by)
    assert items
    kinds = [item.rpartition(": ")[2] for item in items]
    job.rows[fault] = f"{len(items)} of {count}: {', '.join(dict.fromkeys(kinds))}"
