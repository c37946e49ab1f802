"""Tables 1 and 2 of the paper: reported, reproduced and local numbers side by side.

`reported` rows are the paper's (reference.yaml), `reproduced` rows come from the run folders committed under
results/reproduced/ (`external` those of them that a program outside the suite trained, at least in part), `local` rows
from runs on this machine. The committed results/table*.{csv,md,tex} hold all but the last; only `make tables` writes
them, results/TABLES.md and README's table. results/local/table*.{csv,md,tex} hold all.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import stdev
from typing import Any

import pandas as pd
from scipy import stats

from hmerbench.benchmarks import printing
from hmerbench.benchmarks.config import PRESETS, Config
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.report import compare, presets
from hmerbench.benchmarks.report import latex_tables as latex
from hmerbench.benchmarks.report.claims import claims as claims_of_papers
from hmerbench.benchmarks.report.ladder import ladder
from hmerbench.benchmarks.report.paper import model_name, reference
from hmerbench.benchmarks.report.provenance import provenance
from hmerbench.benchmarks.report.sampled import sampled_rate
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.interval import printed_interval
from hmerbench.evaluation.scoring.metrics import TABULATED
from hmerbench.evaluation.scoring.score import Score
from hmerbench.evaluation.scoring.signature import VERSION, fields_of
from hmerbench.evaluation.symlg.editions import PAPER

COUNTS = {metric.column: metric.count for metric in TABULATED}  # column <- key in a score file
EXPRATE, *OTHERS = COUNTS
COLUMNS = ("dataset", "model", "source", *COUNTS, "n", "ci_low", "ci_high", "ci_over", "seeds", "sd", "preset", "added")
SHORT = ("dataset", "model", "source", EXPRATE, "interval", *OTHERS, "n", "seeds", "sd", "preset")
ADDED = " + data"  # appended to the preset of a run with added training data
INTERVAL = ("ci_low", "ci_high", "ci_over")
RATES = (*COUNTS, "ci_low", "ci_high", "sd")
SOURCES = ("reported", "external", "reproduced", "local")

NOTE = (
    "Percentages come from counts. With several seeds of a row they are means, and `sd` is the standard deviation of "
    "ExpRate. The interval (`ci_low`, `ci_high`) is of 95 %, over what `ci_over` says: writers, and seeds where there "
    "are several; for reported rows, of which no more than a rate is known, over images (Wilson's; the count behind it "
    "is the rate times n, rounded), which is too narrow. One over writers alone leaves out how much trainings differ. "
    "`external`: trained by a program that is not in this repository, in whole or in part, so it can be scored again, "
    "but not made again from here. `added`: what a preset trains on in addition to the archive's 8,834 expressions: "
    "parts cut out of them, parts exchanged between them, and at each visit a share of the symbols that allow it "
    "redrawn in other hands, letters and digits as others. Hardware, versions and revisions: PROVENANCE.md."
)
README_MARK, README_END = "<!-- {} written by make tables -->\n", "<!-- end of what make tables writes -->\n"

Tables = dict[str, pd.DataFrame]  # "table1" and "table2", or "table2" alone where the data is not CROHME


def committed(results: Path) -> Tables:
    """The reported and reproduced rows, as in results/table*.{csv,md,tex}."""
    return _paper_tables(_rows("reproduced", results / "reproduced"))


def local(results: Path) -> Tables:
    """The committed rows and those of CROHME runs under results/runs/."""
    return _paper_tables(_rows("reproduced", results / "reproduced") + _rows("local", results / "runs"))


def apart(workspace: Path) -> Tables:
    """The rows of runs on other data than CROHME, and of weights that read it, without the paper's rows."""
    return {"table2": _frame(_rows("local", workspace / "runs", workspace / "evaluated"), "table2")}


def write(tables: Tables, folder: Path, *, crohme: bool = True) -> list[Path]:
    """Write every table as CSV, Markdown and LaTeX, each file atomically; return the paths."""
    paths = []
    for name, table in tables.items():
        title, cells = heading(name, crohme=crohme), printable(table)
        flags = cells.columns.intersection(list(latex.FLAGS))
        texts = {
            "csv": table.to_csv(index=False, float_format="%.2f"),
            "md": f"**{title}**\n\n{cells.to_markdown(index=False, disable_numparse=True)}\n\n{NOTE}\n",
            "tex": latex.table(short(table).join(cells[flags]), title.partition(": ")[2], f"tab:{name}"),
        }
        for ending, text in texts.items():
            paths.append(folder / f"{name}.{ending}")
            write_atomically(paths[-1], text)
    return paths


def show(tables: Tables, *, crohme: bool = True) -> None:
    """Print the tables in short form."""
    for name, table in tables.items():
        printing.show(heading(name, crohme=crohme), short(table).to_dict("records") or [dict.fromkeys(SHORT)])


def short(table: pd.DataFrame) -> pd.DataFrame:
    """Format a table as text in fewer columns: the interval in one, added data marked at the preset, no flags."""
    cells = printable(table)
    cells["interval"] = [interval(low, high) for low, high in zip(table["ci_low"], table["ci_high"], strict=True)]
    cells["preset"] += ["" if added in ("–", "nothing") else ADDED for added in cells["added"]]
    return pd.DataFrame(cells, columns=list(SHORT))


def heading(name: str, *, crohme: bool = True) -> str:
    """The title of a table."""
    what = "ablation on CROHME 2014" if name == "table1" else "CROHME 2014, 2016, 2019"
    return f"Table {name[-1]}: {what}" if crohme else f"Table {name[-1]} on other data: NOT CROHME numbers"


def write_summary(results: Path, readme: Path | None = None) -> list[Path]:
    """Write results/TABLES.md, PROVENANCE.md and CLAIMS.md, and between their marks in a README the ladder of presets
    and the short table. Return the paths.

    Raises UserError, before anything is written, if the marks are missing.
    """
    texts = {
        results / "TABLES.md": f"# Tables in short\n\nWritten by `make tables`.\n\n{summary(results)}",
        results / "PROVENANCE.md": provenance(results / "reproduced"),
        results / "CLAIMS.md": claims_of_papers(results),
    }
    if readme is not None:
        text = readme.read_text(encoding="utf-8")
        for name, part in {"ladder": ladder_table(results), "Table 1": short_summary(results)}.items():
            begin = README_MARK.format(name)
            before, opened, rest = text.partition(begin)
            _, closed, after = rest.partition(README_END)
            if not (opened and closed):
                raise UserError(
                    f"{readme}: add the lines {begin.strip()} and {README_END.strip()}, between which the table belongs"
                )
            text = f"{before}{begin}{part}{README_END}{after}"
        texts[readme] = text
    for path, text in texts.items():
        write_atomically(path, text)
    return list(texts)


def ladder_table(results: Path) -> str:
    """The ladder of presets in Markdown."""
    rows = [rung | {"preset": f"`{rung['preset']}`"} for rung in ladder(results / "reproduced")]
    return pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True) + "\n"


def short_summary(results: Path) -> str:
    """README's table, and below it what coverage is worth with each preset, over the three years."""
    return _by_preset(short_columns(results), "model") + "".join(f"\n{claim}\n" for claim in claims(results))


def short_columns(results: Path) -> dict[str, dict[str, str]]:
    """README's table, as text by column and model: Table 1 as reported, with the preset that reads most, and with the
    one whose rows have most seeds."""
    rows = [row for row in committed(results)["table1"].to_dict("records") if row["dataset"] == "2014"]
    by_preset: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
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
    compared = [each for each in compare.compare([results / "reproduced"], results, compare.POOLED) if each.claim]
    compared.sort(key=lambda each: order.index(each.preset if each.preset in order else ""))
    expressions = sum(reference()["test_sets"].values())
    parts = [
        f"`{each.preset}` {_difference(each.claim)}, {printing.counted(each.claim.seeds, 'seed')}"
        for each in compared
        if each.claim and each.claim.images == expressions
    ]
    names = " → ".join(map(model_name, compare.CLAIM))
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
    text += _by_preset(columns, "model")
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
    rows = [{"preset": preset, **row} for preset, row in descriptions.items()]
    text += pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True) + "\n"
    text += "\n## The recipes beside the paper's\n\nSettings of CoMER (Fusion); other rows differ as in Table 1.\n\n"
    ladder_presets = [preset for preset in PRESETS if preset in columns]
    text += pd.DataFrame(presets.recipes(ladder_presets)).to_markdown(index=False, disable_numparse=True) + "\n"
    compared = compare.compare([results / "reproduced"], results, compare.POOLED)
    expressions = sum(reference()["test_sets"].values())
    whole = {c.preset: c for c in compared if c.steps and c.steps[0].images == expressions}
    return text + _differences([whole[preset] for preset in columns if preset in whole])


def _differences(comparisons: Sequence[compare.Comparison]) -> str:
    """The differences between rows, a column per preset, and how much runs differ that differ in their seed alone."""
    if not comparisons:
        return ""
    columns: dict[str, dict[str, str]] = {"reported, 2014": {}}
    for step in (step for comparison in comparisons for step in comparison.every_step):
        columns["reported, 2014"][step.name] = "" if step.reported is None else f"{step.reported:+.2f}"
    for comparison in comparisons:
        columns[comparison.preset] = {step.name: _difference(step) for step in comparison.every_step}
    text = (
        "\n## Differences between rows\n\nIn points of ExpRate over the three years together (95 % interval over seeds "
        "and writers), **bold** where p is below 5 %. p is corrected for all steps of the paper's order at all presets "
        "whose networks are their own, and intervals are not; the difference between BTTR (baseline) and CoMER "
        "(Fusion) is a claim by itself."
    )
    if borrowed := [f"`{comparison.preset}`" for comparison in comparisons if comparison.borrowed]:
        text += f" {', '.join(borrowed)} reads with the weights of another preset: no second experiment."
    if any(not step.tested for comparison in comparisons for step in comparison.every_step):
        text += " (writers: …): one seed; the interval leaves out how much trainings differ and is too narrow."
    text += "\n\n" + _by_preset(columns, "from → to")
    seeded = [each for each in comparisons if any(step.tested for step in each.every_step)]
    if not seeded:
        return text
    spreads = ", ".join(f"{_spread(comparison.rows):.1f} points with `{comparison.preset}`" for comparison in seeded)
    return text + f"\nTwo runs of a row differ by less than {spreads}, in 95 of 100 cases.\n"


def _spread(rows: Sequence[compare.Row]) -> float:
    """Limit of 95 % of the differences between two runs of a row, from the standard deviations of all rows pooled."""
    known = [(row.n - 1, row.sd**2) for row in rows if row.sd is not None]
    df = sum(count for count, _ in known)
    return float(stats.t.ppf(0.975, df)) * math.sqrt(2 * sum(count * square for count, square in known) / df)


def _difference(step: compare.Step) -> str:
    interval = f"{step.low:+.1f} to {step.high:+.1f}"
    if not step.tested:
        return f"{step.difference:+.2f} ({step.over}: {interval})"
    text = f"{step.difference:+.2f} ({interval})"
    return f"{f'**{text}**' if step.p < compare.LEVEL else text}, p{compare.printed_p(step.p, '=')}"


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


def _paper_tables(runs: list[dict[str, Any]]) -> Tables:
    """Tables 1 and 2 with the paper's rows and those of `runs`."""
    first: list[dict[str, Any]] = [{"dataset": "2014", **row} for row in reference()["table1"]]
    second: list[dict[str, Any]] = [
        {"dataset": year, "model": model, **dict(zip(COUNTS, rates, strict=False))}
        for year, models in reference()["table2"].items()
        for model, rates in models.items()
    ]
    for row in (*first, *second):
        row |= {"source": "reported", "n": reference()["test_sets"][row["dataset"]]}
    other = {recipe for recipe, names in reference()["recipes"].items() if "table1" not in names}  # systems
    first += [row for row in runs if row["split"] == "2014" and row["recipe"] not in other]
    return {"table1": _frame(first, "table1"), "table2": _frame(second + runs, "table2")}


def _rows(source: str, *roots: Path) -> list[dict[str, Any]]:
    """One row per dataset, recipe and preset: the mean over seeds, using the last scored run of each seed."""
    latest: dict[tuple, tuple[float, RunFolder, Score]] = {}
    for run in RunFolder.under(*roots):
        made_by = "external" if source == "reproduced" and run.external else source
        for split, score in run.scores.items():
            settings = presets.settings_digest(run)  # two recipes may share a name
            key = _dataset(run, split, score.n), split, score.n, run.recipe, made_by, run.preset, run.seed, settings
            scored_at = (run.path / f"scores/{split}.json").stat().st_mtime
            if key not in latest or scored_at >= latest[key][0]:
                latest[key] = scored_at, run, score
    labels = presets.preset_labels([run for _, run, _ in latest.values()])
    seeds: dict[tuple, list[tuple[RunFolder, Score]]] = {}
    for (dataset, split, n, recipe, made_by, *_), (_, run, score) in latest.items():
        added, preset = presets.added_data(run.settings.data), labels[run] + _other_scorer(score)
        seeds.setdefault((dataset, split, n, recipe, made_by, preset, added), []).append((run, score))
    rows = []
    names = ("dataset", "split", "n", "recipe", "source", "preset", "added")
    for key, runs in seeds.items():
        row: dict[str, Any] = dict(zip(names, key, strict=True)) | {"seeds": len(runs)}
        scores = [score for _, score in runs]
        with suppress(UserError):  # without readable verdicts, the interval is over images, from the counts
            found = sampled_rate([run for run, _ in runs], row["split"])
            row |= dict(zip(INTERVAL, (found.low, found.high, found.over), strict=True))
        row["sd"] = stdev(100 * score.exact / row["n"] for score in scores) if len(scores) > 1 else None
        for column, count in COUNTS.items():
            counted = [getattr(score, count) for score in scores]
            row[column] = None if None in counted else 100 * sum(counted) / (row["n"] * len(scores))
        rows.append(row | {flag: reference()["recipes"].get(row["recipe"], {}).get(flag) for flag in latex.FLAGS})
    return rows


def _other_scorer(score: Score) -> str:
    """How the scorer in a score's signature differs from the paper's, so that seeds of several are not averaged."""
    usual = PAPER.versions | {"scorer": "", "v": VERSION}
    fields = fields_of(score.signature)
    return "".join(f" {key}:{text}" for key, text in fields.items() if usual.get(key, text) != text)


def _dataset(run: RunFolder, split: str, n: int) -> str:
    """CROHME's year or the name of other data, and how much of it was scored if not all."""
    data = run.read_data
    label = split if data == "crohme" else data if split == "test" else f"{data} {split}"
    partial = run.settings.search.limit == n != reference()["test_sets"].get(split)
    return f"{label} [{n} evenly spaced]" if partial else label


def _frame(rows: list[dict[str, Any]], name: str) -> pd.DataFrame:
    """Rows with their intervals, in the paper's order; the sources of a model stand next to each other."""
    recipes = reference()["recipes"]
    ours, order = [names[name] for names in recipes.values() if name in names], list[str]()
    for model in [*(row["model"] for row in rows if "model" in row), *ours]:  # ours where the paper has them
        before = ours[: ours.index(model)] if model in ours else []
        order += [each for each in (*before, model) if each not in order]
    rows = [
        {"model": recipes.get(row.get("recipe"), {}).get(name, row.get("recipe"))}
        | dict(zip(INTERVAL, (*printed_interval(row["exprate"], row["n"]), "images"), strict=True))
        | row
        for row in rows
    ]

    def position(row: Mapping[str, Any]) -> tuple:
        rank = order.index(row["model"]) if row["model"] in order else len(order)
        year = row["dataset"].partition(" [")[0]
        preset = row.get("preset", "").partition(" ")[0], row.get("added", "")
        return year, rank, row["model"], SOURCES.index(row["source"]), row["dataset"], preset

    columns = [*COLUMNS, *(latex.FLAGS if name == "table1" else ())]
    frame = pd.DataFrame(sorted(rows, key=position), columns=columns)
    frame[list(RATES)] = frame[list(RATES)].astype(float)
    return frame.astype({"n": "Int64", "seeds": "Int64"})


def interval(low: float, high: float) -> str:
    """Format an interval; a dash if it is unknown."""
    return "–" if pd.isna(low) else f"{low:.1f}–{high:.1f}"


def printable(frame: pd.DataFrame) -> pd.DataFrame:
    """Format every cell as text: rates with two decimals, flags as ✓ and ✗, a dash for unknown values."""

    def text(column: str, value: Any) -> str:
        if pd.isna(value):
            return "–"
        if column in latex.FLAGS:
            return "✓" if value else "✗"
        return f"{value:.2f}" if column in RATES else str(value)

    return pd.DataFrame({name: [text(name, value) for value in frame[name]] for name in frame.columns}, dtype=object)
