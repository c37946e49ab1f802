"""Comparisons of rows in words: for the terminal, as JSON, and what a job says of its runs."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.report.compare import Comparison, compare
from hmerbench.benchmarks.report.scored_runs import POOLED
from hmerbench.benchmarks.report.steps import printed_p
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.writers import LEAST

WIDTH = 118  # characters in a printed line
NOTES = {  # what an interval is over -> why it is over no more
    "writers": "over writers alone: there is one seed, or none in common; other trainings would differ, too",
    "images": f"over images: the ids name fewer than {LEAST} writers, or nothing differs between writers and seeds",
    "seeds and images": f"over seeds and images: the ids name fewer than {LEAST} writers",
}


def as_text(comparison: Comparison) -> str:
    """Format a comparison for the terminal."""
    heading = f"{comparison.conditions}: ExpRate in percent, mean ± standard deviation over seeds, 95 % interval"
    lines = [textwrap.fill(heading, WIDTH), ""]
    names = max(14, *(len(row.model) for row in comparison.rows))
    for row in comparison.rows:
        spread = f"{row.mean:6.2f}{'' if row.sd is None else f' ± {row.sd:.2f}'}"
        interval = f"{row.low:.2f} to {row.high:.2f}, over {row.over}"
        lines.append(f"  {row.model:<{names}}  {spread:<14} {interval}  seed{'s' * (row.n > 1)} {row.seeds}")
    if steps := comparison.every_step:
        width = max(len(step.name) for step in steps)
        lines += ["", f"  {'difference in points':<{width + 7}}  {'95 %':<17}{'over':<20}      p  corrected"]
    for step in steps:
        interval = f"{step.low:+.2f} to {step.high:+.2f}"
        tests = f"{printed_p(step.p_alone):>7}  {printed_p(step.p):>9}"
        lines.append(
            f"  {step.name:<{width}} {step.difference:+6.2f}  {interval:<17}{step.over:<20}{tests}  {step.verdict}"
        )
    used = {each.over for each in (*comparison.rows, *comparison.every_step)}
    notes = [f"  {note}" for over, note in NOTES.items() if over in used]
    return "\n".join([*lines, "", *notes, *([""] if notes else []), textwrap.fill(comparison.words, WIDTH), ""])


def what_a_difference_means(runs: Sequence[RunFolder], root: Path) -> str:
    """What may be concluded from the rates of a job's runs, and the command that tests the rows under `root`."""
    comparisons = compare([run.path for run in runs], root, POOLED, every_pair=True)
    steps = [step for comparison in comparisons for step in comparison.steps]
    ask = f"hmerbench compare {root} tests the rows, over seeds if they share some: SEEDS='7 8 9'"
    if not steps:
        return f"An interval of one seed leaves out how much trainings differ. {ask}"
    widest = max(steps, key=lambda step: abs(step.difference))
    interval = f"95 %: {widest.low:+.1f} to {widest.high:+.1f} over {widest.over}"
    seeds = f"{counted(widest.seeds, 'seed')} in common"
    shows = f"corrected p{printed_p(widest.p, '=')}" if widest.tested else f"{seeds}: no order"
    return f"largest difference: {widest.name} {widest.difference:+.1f} points ({interval}; {shows}). {ask}"


def as_json(comparisons: Sequence[Comparison]) -> str:
    """Format comparisons as JSON, with every field."""
    return json.dumps([asdict(comparison) for comparison in comparisons], indent=1, ensure_ascii=False)
