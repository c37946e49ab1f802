"""What `make tables` writes besides the tables: TABLES.md, PROVENANCE.md, CLAIMS.md, and the tables between marks in
README.md and speed/README.md."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from hmerbench.benchmarks import printing
from hmerbench.benchmarks.config import PRESETS, Config
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.report import presets, trials
from hmerbench.benchmarks.report.claims import claims as claims_of_papers
from hmerbench.benchmarks.report.compare import CLAIM, Comparison, Row, compare
from hmerbench.benchmarks.report.ladder import ladder
from hmerbench.benchmarks.report.paper import ORDER, model_name, reference
from hmerbench.benchmarks.report.provenance import provenance
from hmerbench.benchmarks.report.scored_runs import POOLED
from hmerbench.benchmarks.report.steps import LEVEL, Step, printed_p
from hmerbench.benchmarks.report.tables import RIGHT, ceilings, committed, interval, rows
from hmerbench.benchmarks.runs.folder import RunFolder

README_MARK, README_END = "<!-- {} written by make tables -->\n", "<!-- end of what make tables writes -->\n"


def write_summary(results: Path, readme: Path | None = None) -> list[Path]:
    """Write results/TABLES.md, PROVENANCE.md and CLAIMS.md, and between their marks in a README the ladder of presets
    and the short table, in speed/README.md the trials. Return the paths.

    Raises UserError, before anything is written, if the marks are missing.
    """
    texts = {
        results / "TABLES.md": f"# Tables in short\n\nWritten by `make tables`.\n\n{summary(results)}",
        results / "PROVENANCE.md": provenance(results / "reproduced"),
        results / "CLAIMS.md": claims_of_papers(results),
    }
    if readme is not None:
        texts[readme] = _between(readme, {"ladder": ladder_table(results), "Table 1": short_summary(results)})
    if (page := results / "speed/README.md").exists():
        texts[page] = _between(page, trials.tables(results / "speed"))
    for path, text in texts.items():
        write_atomically(path, text)
    return list(texts)


def _between(page: Path, parts: Mapping[str, str]) -> str:
    """The page's text with these parts between their marks. Raises UserError if marks are missing."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin = README_MARK.format(name)
        before, opened, rest = text.partition(begin)
        _, closed, after = rest.partition(README_END)
        if not (opened and closed):
            raise UserError(
                f"{page}: add the lines {begin.strip()} and {README_END.strip()}, between which the table belongs"
            )
        text = f"{before}{begin}{part}{README_END}{after}"
    return text


def ladder_table(results: Path) -> str:
    """The ladder of presets in Markdown."""
    rungs = [rung | {"preset": f"`{rung['preset']}`"} for rung in ladder(results / "reproduced")]
    return pd.DataFrame(rungs).to_markdown(index=False, disable_numparse=True) + "\n"


def short_summary(results: Path) -> str:
    """README's table, and below it what coverage is worth with each preset, over the three years."""
    return _by_preset(short_columns(results), "model") + "".join(f"\n{claim}\n" for claim in claims(results))


def short_columns(results: Path) -> dict[str, dict[str, str]]:
    """README's table, as text by column and model: Table 1 as reported, with the preset that reads most, and with the
    one whose rows have most seeds."""
    by_preset: dict[str, list[dict[str, Any]]] = {}
    for row in committed(results)["table1"].to_dict("records"):
        if row["dataset"] != "2014":
            continue
        by_preset.setdefault(row["source"] if row["source"] == "reported" else row["preset"], []).append(row)

    def rate(preset: str) -> float:
        return max(row["exprate"] for row in by_preset[preset])

    def seeded_rows(preset: str) -> tuple[int, float]:
        return sum(row["seeds"] > 2 for row in by_preset[preset]), rate(preset)

    ours = [preset for preset in by_preset if preset != "reported"]
    shown = dict.fromkeys(["reported", *(max(ours, key=key) for key in (rate, seeded_rows) if ours)])
    return {_seeded(name, by_preset[name]): {row["model"]: _rate(row) for row in by_preset[name]} for name in shown}


def _seeded(preset: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A column's heading: the preset, and on how many seeds its rows are."""
    if preset == "reported":
        return preset
    seeds = [row["seeds"] for row in rows]
    return f"{preset}, {presets.number_range(seeds)} seed{'s' * (max(seeds) > 1)}"


def claims(results: Path) -> list[str]:
    """What coverage is worth with each preset whose runs read the three years, in a sentence of Markdown."""
    if not any(run.scores for run in RunFolder.under(results / "reproduced")):
        return []
    order = [*PRESETS, ""]  # experiments last
    compared = [each for each in compare([results / "reproduced"], results, POOLED) if each.claim]
    compared.sort(key=lambda each: order.index(each.preset if each.preset in order else ""))
    expressions = sum(reference()["test_sets"].values())
    parts = [
        f"`{each.preset}` {_difference(each.claim)}, {printing.counted(each.claim.seeds, 'seed')}"
        for each in compared
        if each.claim and each.claim.images == expressions
    ]
    names = " → ".join(map(model_name, CLAIM))
    return [f"{names}, in points over the three years: {'; '.join(parts)}."] if parts else []


def summary(results: Path) -> str:
    """The summary in Markdown: Table 1 with a column per preset, from the top of the ladder down; the presets beside
    the authors' settings; and `compare` on all sets pooled."""
    columns: dict[str, dict[str, str]] = {}
    for row in committed(results)["table1"].to_dict("records"):
        if row["dataset"] != "2014":  # a part of it
            continue
        column = row["source"] if row["source"] == "reported" else row["preset"]
        columns.setdefault(column, {})[row["model"]] = _rate(row)
    order = ["reported", *reversed(PRESETS)]
    names = sorted(columns, key=lambda name: (order.index(name) if name in order else len(order), -len(columns[name])))
    columns = {name: columns[name] for name in names}
    runs: dict[str, list[RunFolder]] = {}
    scored = [run for run in RunFolder.under(results / "reproduced") if run.scores]
    for run, preset in presets.preset_labels(scored).items():
        runs.setdefault(preset, []).append(run)
    text = "## Table 1 by preset\n\n"
    text += (
        f"ExpRate on the {reference()['test_sets']['2014']} images of CROHME 2014 in percent: mean over the seeds ± "
        "standard deviation (95 % interval over writers, and over seeds where there are several). BTTR (reported) is "
        "the number of BTTR's paper, BTTR a rerun by CoMER's authors.\n\n"
    )
    text += _by_preset(columns, "model") + limits(results)
    if not runs:
        return text
    descriptions = {"authors'": presets.describe_preset(Config(recipe="", preset=""))}
    for preset in (column for column in columns if column in runs):
        with suppress(UserError):  # settings of another version of the suite
            descriptions[f"`{preset}`"] = presets.describe_preset(runs[preset][0].settings, runs[preset])
    text += (
        "\n## The presets\n\nAdded to the archive's expressions: parts cut out of them, parts exchanged between them, "
        "and a share of the symbols redrawn in other hands, letters and digits as others (`-`, fractions, roots, `.` "
        "and `,` are not redrawn). Presets that are not in README's ladder are [experiments](experiments/).\n\n"
    )
    lines = [{"preset": preset, **row} for preset, row in descriptions.items()]
    text += pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True) + "\n"
    text += "\n## The recipes beside the paper's\n\nSettings of CoMER (Fusion); other rows differ as in Table 1.\n\n"
    ladder_presets = [preset for preset in PRESETS if preset in columns]
    text += pd.DataFrame(presets.recipes(ladder_presets)).to_markdown(index=False, disable_numparse=True) + "\n"
    compared = compare([results / "reproduced"], results, POOLED)
    expressions = sum(reference()["test_sets"].values())
    whole = {c.preset: c for c in compared if c.steps and c.steps[0].images == expressions}
    return text + _differences([whole[preset] for preset in columns if preset in whole])


LIMITS = r"""
## Whether `\limits` is written

How many expressions are right, officially, and if it makes no difference whether `\limits` is written (signature
`limits:neutral`); means over the seeds. The truth of 2014 has scripts at operators such as `\sum` where the captions,
and so the networks that learned from them, write `\limits`; those of 2016 and 2019 do not.

"""


def limits(results: Path) -> str:
    """Official and neutral counts of every row of runs, by year, and last those of a perfect reader of the captions."""
    years, table = reference()["test_sets"], dict[tuple[str, str, str], dict[str, str]]()
    of_runs = [row for row in rows("reproduced", results / "reproduced") if row["dataset"] in years]
    for row in sorted(of_runs, key=lambda row: ([*ORDER, row["recipe"]].index(row["recipe"]), row["recipe"])):
        cells = table.setdefault((model_name(row["recipe"]), f"`{row['preset']}`", str(row["seeds"])), {})
        cells |= {f"{row['dataset']}, {name}": row[name] or "–" for name in RIGHT}
    if not table:
        return ""
    perfect = {f"{year}, {name}": str(of[name]) for year, of in ceilings(results).items() for name in RIGHT}
    table["a perfect reader of the captions", "", ""] = perfect
    lines = [dict(zip(("model", "preset", "seeds"), key, strict=True)) | cells for key, cells in table.items()]
    frame = pd.DataFrame(lines).fillna("–")
    names = {name: name.replace("exact", "official") for name in frame.columns}
    return LIMITS + frame.rename(columns=names).to_markdown(index=False, disable_numparse=True) + "\n"


def _differences(comparisons: Sequence[Comparison]) -> str:
    """The differences between rows, a column per preset, and how much runs differ that differ in their seed alone."""
    if not comparisons:
        return ""
    columns: dict[str, dict[str, str]] = {"reported, 2014": {}}
    for step in (step for comparison in comparisons for step in comparison.every_step):
        columns["reported, 2014"][step.name] = "" if step.reported is None else f"{step.reported:+.2f}"
    for comparison in comparisons:
        columns[comparison.preset] = {step.name: _difference(step) for step in comparison.every_step}
    text = (
        "\n## Differences between rows\n\nIn points of ExpRate over the three years (95 % interval over seeds and "
        "writers), **bold** where p < 0.05. p is corrected (Holm) over all steps of the paper's order at all presets "
        "whose networks are their own; coverage as a whole, BTTR (baseline) → CoMER (Fusion), is a claim by itself. "
        "Intervals are not corrected."
    )
    if borrowed := [f"`{comparison.preset}`" for comparison in comparisons if comparison.borrowed]:
        text += f" {', '.join(borrowed)} reads with another preset's weights, so it is no second experiment."
    if any(not step.tested for comparison in comparisons for step in comparison.every_step):
        text += " Of one seed, the interval is over writers alone, and too narrow: other trainings would differ."
    text += "\n\n" + _by_preset(columns, "from → to")
    seeded = [each for each in comparisons if any(step.tested for step in each.every_step)]
    if not seeded:
        return text
    spreads = ", ".join(f"{_spread(comparison.rows):.1f} points with `{comparison.preset}`" for comparison in seeded)
    return text + f"\nTwo runs of a row differ by less than {spreads}, in 95 of 100 cases.\n"


def _spread(rows: Sequence[Row]) -> float:
    """Limit of 95 % of the differences between two runs of a row, from the standard deviations of all rows pooled."""
    known = [(row.n - 1, row.sd**2) for row in rows if row.sd is not None]
    df = sum(count for count, _ in known)
    return float(stats.t.ppf(0.975, df)) * math.sqrt(2 * sum(count * square for count, square in known) / df)


def _difference(step: Step) -> str:
    interval = f"{step.low:+.1f} to {step.high:+.1f}"
    if not step.tested:
        return f"{step.difference:+.2f} ({step.over}: {interval})"
    text = f"{step.difference:+.2f} ({interval})"
    return f"{f'**{text}**' if step.p < LEVEL else text}, p{printed_p(step.p, '=')}"


def _by_preset(columns: Mapping[str, Mapping[str, str]], index: str) -> str:
    """A Markdown table of columns: presets, except those called reported."""
    names = {name: name if name.startswith("reported") else re.sub(r"^[^,]+", r"`\g<0>`", name) for name in columns}
    frame = pd.DataFrame(columns).rename(columns=names).rename_axis(index).fillna("")
    return frame.to_markdown(disable_numparse=True, colalign=["left", *["right"] * len(columns)]) + "\n"


def _rate(row: Mapping[str, Any]) -> str:
    rate = f"{row['exprate']:.2f}"
    if row["source"] == "reported":
        return rate
    spread = f" ± {row['sd']:.2f}" if row["seeds"] > 1 else ""
    return f"{rate}{spread} ({interval(row['ci_low'], row['ci_high'])})"
