"""What `make tables` writes besides the tables: TABLES.md, PROVENANCE.md, CLAIMS.md, and the tables between marks in
README.md and speed/README.md."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import special

from hmerbench.benchmarks import printing
from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report import presets
from hmerbench.benchmarks.report.claims import claims as claims_of_papers
from hmerbench.benchmarks.report.compare import CLAIM, Comparison, RowSummary, compare
from hmerbench.benchmarks.report.documents import from_template, markdown, undamaged, write_texts
from hmerbench.benchmarks.report.paper import YEAR, YEARS, model_name, pooled, position, reference, rows_of_bttr
from hmerbench.benchmarks.report.presets import ladder
from hmerbench.benchmarks.report.scored_runs import POOLED, years_are_read
from hmerbench.benchmarks.report.tables import RIGHT, Record, ceilings, committed_rows, interval, paper_tables
from hmerbench.benchmarks.resolve import PRESETS
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation.datasets import crohme

LOST = "† trained wholly or in part by a [program that is lost](results/LIMITATIONS.md), not by this suite."
Cells = dict[str, str]  # of a table's line, by column
README_MARK, README_END = "<!-- {} written by make tables -->\n", "<!-- end of what make tables writes -->\n"


def write_summary(results: Path, readme: Path | None = None, rows: list[Record] | None = None) -> list[Path]:
    """Write results/TABLES.md, PROVENANCE.md and CLAIMS.md, and between their marks in a README the ladder of presets
    and the short table, in speed/README.md the trials. Return the paths. `rows` are `committed_rows`, if known.

    Raises UserError, before anything is written, if the marks are missing.
    """
    summary = Summary(results, rows)
    texts = {
        results / "TABLES.md": summary.page(),
        results / "PROVENANCE.md": provenance(results / "reproduced"),
        results / "CLAIMS.md": claims_of_papers(results),
    }
    if readme is not None:
        rungs = [rung | {"preset": f"`{rung['preset']}`"} for rung in ladder(results / "reproduced")]
        texts[readme] = _between(readme, {"ladder": f"{markdown(rungs)}\n", "Table 1": summary.short()})
    if (page := results / "speed/README.md").exists():
        texts[page] = _between(page, speed_tables(results / "speed"))
    return write_texts(texts)


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


class Summary:
    """The committed runs in short: what is costly to find out is found out once."""

    def __init__(self, results: Path, rows: list[Record] | None = None):
        self.results, self.rows = results, committed_rows(results) if rows is None else rows
        self.scored = [run for run in RunFolder.under(results / "reproduced") if run.scores]

    @cached_property
    def by_column(self) -> dict[str, pd.DataFrame]:
        """The rows of Table 1 on all of `YEAR`, by source or preset."""
        table = paper_tables(self.rows, self.results)["table1"].query("dataset == @YEAR")  # not a part of it
        column = table["preset"].where(table["source"] != "reported", "reported")
        return {str(name): rows for name, rows in table.groupby(column, sort=False)}

    @cached_property
    def compared(self) -> list[Comparison]:
        """The comparisons of the runs' rows, over the years that the paper reports."""
        if not years_are_read(self.results):
            return []
        return compare([self.results / "reproduced"], self.results, POOLED, among=YEARS)

    def short(self) -> str:
        """README's table and the sentences below it."""
        return f"{_by_preset(self.short_table())}\n\n{' '.join(self.sentences())}\n"

    def sentences(self) -> list[str]:
        """What README's table calls BTTR and what it marks, then `claims`; in Markdown."""
        lost = [LOST] if self.short_table().map(lambda rate: "†" in rate).any(axis=None) else []
        return [reference()["bttr"], *lost, *self.claims()]

    def short_table(self) -> pd.DataFrame:
        """README's table, as text: Table 1 as reported, with the preset that reads most, and with the one whose rows
        have most seeds."""

        def rate(preset: str) -> float:
            return max(self.by_column[preset]["exprate"])

        def seeded_rows(preset: str) -> tuple[int, float]:
            return sum(self.by_column[preset]["seeds"] > 2), rate(preset)

        ours = [preset for preset in self.by_column if preset != "reported"]
        shown = dict.fromkeys(["reported", *(max(ours, key=key) for key in (rate, seeded_rows) if ours)])
        return self.board(list(shown)).rename(columns=self._seeded)

    def board(self, columns: Sequence[str]) -> pd.DataFrame:
        """Table 1 as text: what is reported and what each preset reads side by side, by model."""
        cells: dict[str, dict[str, str]] = {name: {} for name in columns}
        for name, of in cells.items():
            for row in self.by_column[name].to_dict("records"):  # some seeds of a row may be external
                of[row["model"]] = "; ".join(filter(None, (of.get(row["model"]), _cell(row))))
        return pd.DataFrame(cells).fillna("").rename_axis("model")

    def _seeded(self, preset: str) -> str:
        """A column's heading: the preset, and on how many seeds its rows are."""
        seeds = [] if preset == "reported" else self.by_column[preset]["seeds"].tolist()
        return f"{preset}, {presets.number_range(seeds)} seed{'s' * (max(seeds) > 1)}" if seeds else preset

    def claims(self) -> list[str]:
        """What coverage is worth with each preset whose runs read the three years, in a sentence of Markdown."""
        parts = [
            f"`{each.preset}`{' (with weights of another preset)' * each.borrowed} {each.claim.told(each.claim.over)}, "
            + printing.counted(each.claim.seeds, "seed")
            for each in sorted(self.compared, key=lambda each: (each.borrowed, presets.rung(each.preset)[0]))
            if each.claim and each.claim.images == pooled()
        ]
        names = " → ".join(map(model_name, CLAIM))
        return [f"{names}, in points over the three years: {'; '.join(parts)}."] if parts else []

    def page(self) -> str:
        """TABLES.md: Table 1 with a column per preset, from the top of the ladder down; the presets beside the authors'
        settings; and `compare` on all sets pooled."""
        order = ["reported", *reversed(PRESETS)]
        names = sorted(
            self.by_column,
            key=lambda name: (order.index(name) if name in order else len(order), -len(self.by_column[name])),
        )
        content = {"table_1": _by_preset(self.board(names)), "limits": self.limits()}
        content |= self._presets(names) | self._differences(names)
        content |= {"sub_and_sup": crohme().whose_limits("Sub and Sup")}
        content |= {"below_and_above": crohme().whose_limits("Below and Above")}
        return from_template("TABLES.md", year=YEAR, images=crohme().n(YEAR), bttr=rows_of_bttr(), **content)

    def _presets(self, names: Sequence[str]) -> dict[str, str]:
        """The presets of the runs, beside the authors' settings, and what recipes are at the ladder's."""
        runs: dict[str, list[RunFolder]] = {}
        for run, preset in presets.preset_labels(self.scored).items():
            runs.setdefault(preset, []).append(run)
        if not runs:
            return {"presets": "", "recipes": ""}
        lines = [{"preset": "authors'"} | presets.describe_preset(Config(recipe="", preset=""))]
        for preset in (name for name in names if name in runs):
            lines.append({"preset": f"`{preset}`"} | presets.describe_preset(runs[preset][0].settings, runs[preset]))
        recipes = presets.recipes([preset for preset in PRESETS if preset in names])
        return {"presets": markdown(lines), "recipes": markdown(recipes)}

    def limits(self) -> str:
        """Official and neutral counts of every row of runs, by year, and last those of a perfect reader of the
        captions."""
        lines = dict[tuple[str, ...], Cells]()
        of_runs = [row for row in self.rows if row["dataset"] in crohme().tests]
        for row in sorted(of_runs, key=lambda row: position(row["recipe"])):
            named = {
                "model": model_name(row["recipe"]) + "†" * (row["source"] == "external"),
                "preset": f"`{row['preset']}`",
                "seeds": str(row["seeds"]),
            }
            line = lines.setdefault((*named.values(), row["source"]), named)
            line |= {f"{row['dataset']}, {name}": row[name] or "–" for name in RIGHT}
        if not lines:
            return ""
        perfect = {"model": "a perfect reader of the captions", "preset": "", "seeds": ""}
        perfect |= {f"{year}, {name}": str(of[name]) for year, of in ceilings(self.results).items() for name in RIGHT}
        frame = pd.DataFrame([*lines.values(), perfect]).fillna("–")
        return markdown(frame.rename(columns=lambda name: name.replace("exact", "official")))

    def _differences(self, names: Sequence[str]) -> dict[str, Any]:
        """The differences between rows, a column per preset, and how much runs differ that differ in their seed
        alone."""
        whole = {each.preset: each for each in self.compared if each.steps and each.steps[0].images == pooled()}
        shown = [whole[preset] for preset in names if preset in whole]
        steps = [step for each in shown for step in each.every_step]
        columns = {f"reported, {YEAR}": {s.name: "" if s.reported is None else f"{s.reported:+.2f}" for s in steps}}
        columns |= {each.preset: {step.name: step.told(step.over) for step in each.every_step} for each in shown}
        seeded = [each for each in shown if any(step.tested for step in each.every_step)]
        return {
            "differences": shown and _by_preset(pd.DataFrame(columns).fillna("").rename_axis("from → to")),
            "borrowed": ", ".join(f"`{each.preset}`" for each in shown if each.borrowed),
            "one_seed": any(not step.tested for step in steps),
            "spreads": ", ".join(f"{_spread(each.rows):.1f} points with `{each.preset}`" for each in seeded),
        }


def _spread(rows: Sequence[RowSummary]) -> float:
    """Limit of 95 % of the differences between two runs of a row, from the standard deviations of all rows pooled."""
    known = [(row.n - 1, row.sd**2) for row in rows if row.sd is not None]
    df = sum(count for count, _ in known)
    return float(special.stdtrit(df, 0.975)) * math.sqrt(2 * sum(count * square for count, square in known) / df)


def _by_preset(table: pd.DataFrame) -> str:
    """A Markdown table whose columns are presets, except those called reported."""
    quoted = table.rename(columns=lambda name: re.sub(r"^(?!reported)[^,]+", r"`\g<0>`", name))
    return quoted.to_markdown(disable_numparse=True, colalign=["left", *["right"] * len(table.columns)])


def _cell(row: Mapping[str, Any]) -> str:
    rate = f"{row['exprate']:.2f}"
    if row["source"] == "reported":
        return rate
    spread = f" ± {row['sd']:.2f}" if row["seeds"] > 1 else ""
    mark = "†" if row["source"] == "external" else ""
    return f"{rate}{mark}{spread} ({interval(row['ci_low'], row['ci_high'])})"


def provenance(root: Path) -> str:
    """PROVENANCE.md: a line for each recipe, preset and seed."""
    runs = [run for run in RunFolder.under(root) if run.scores]
    rows = [
        {"recipe": model_name(run.recipe), "preset": f"`{run.preset}`", "seed": str(run.seed)} | made(run)
        for run in runs
    ]
    return from_template("PROVENANCE.md", runs=markdown(rows) if rows else "There are no runs.")


def made(run: RunFolder) -> dict[str, str]:
    """What made a run: program, devices, versions, revisions, cost, and whether its weights are kept."""
    places, read = run.environments, run.environment.get("trained_in")
    versions = [place.get("versions", {}) for place in places]
    minutes = run.core_minutes or (run.seconds[-1] / 60 if run.history else 0)
    program = _chain("suite" if "hmerbench" in of else "external" for of in versions)
    if run.external and program == "suite":  # it reads with another's network
        program = "suite, and external"
    return {
        "program": program,
        "device": run.hardware,
        "bf16 unit": _chain(map(_bf16_unit, places)),
        **{name: _chain(of.get(name, "?") for of in versions) for name in ("torch", "numpy")},
        "Python": _chain(place.get("python", "?") for place in places),
        "revision": _chain((place.get("revision") or "?")[:7] for place in places),
        "minutes": "" if read or not run.history else f"{minutes:.0f}{' (core)' * bool(run.core_minutes)}",
        "steps": "" if read or not run.history else f"{run.history[-1]['step']:,}",
        "weights": f"of {read.rpartition('-')[0]}" if read else "yes" if run.has_weights else "no",
    }


def _bf16_unit(place: Mapping[str, Any]) -> str:
    if place.get("gpu"):
        return "GPU"
    return "matrix unit" if place.get("bf16_matrix_unit") else place.get("bf16_unit") or "no matrix unit"


def _chain(values: Iterable[str]) -> str:
    return ", then ".join(dict.fromkeys(values))


READINGS = {  # of the preset `medium` -> column
    "as it is": "four sizes",
    "search.scales=[1.0]": "one size",
    "search.scales=[0.85,1.0,1.15,1.3,1.45] search.alpha=0.25": "five sizes, exponent 0.25",
}


def speed_tables(folder: Path) -> dict[str, str]:
    """The Markdown tables of speed/README.md by the names of their marks, of those files that are there."""
    made = {"recipe": {"trials": _trials, "readings": _readings}, "search_tricks": {"tricks": _tricks}}
    texts = dict[str, str]()
    for path in filter(Path.exists, (folder / f"{file}.csv" for file in made)):
        with undamaged(path, fix="measure again"):
            texts |= {name: markdown(make(read_table(path))) + "\n" for name, make in made[path.stem].items()}
    return texts


def _percent(row: Cells) -> str:
    return f"{100 * int(row['exact']) / int(row['n']):.1f}"


def _trials(rows: Sequence[Cells]) -> Sequence[Cells]:
    """A line for each training: what was changed, what it reads in one size and several, and how it predicts words."""
    lines: dict[tuple[str, ...], Cells] = {}
    for row in rows:
        named = {"change": row["trial"], **_told_apart(row, rows), "epochs": row["epochs"]}
        line = lines.setdefault(tuple(named.values()), named)
        line |= dict.fromkeys(READINGS.values(), "") | line
        if row["reading"] in READINGS:
            line[READINGS[row["reading"]]] = _percent(row)
        line["core-minutes"] = row["core_minutes"]
        line |= {"loss": row["loss"], "words, %": row["word_accuracy"]} if row["loss"] else {}
    return sorted(lines.values(), key=lambda line: "data.limit" in line["change"])


def _readings(rows: Sequence[Cells]) -> Sequence[Cells]:
    """A line for every other reading of a trained network."""
    others = [row for row in rows if row["reading"] not in READINGS]
    return [
        {"trained": row["trial"], **_told_apart(row, rows), "read": row["reading"], "read right, %": _percent(row)}
        for row in others
    ]


def _told_apart(row: Cells, rows: Sequence[Cells]) -> Cells:
    """What else tells trainings apart, if anything: recipe, preset and seed, where they are several."""
    return {name: row[name] for name in ("recipe", "preset", "seed") if len({each[name] for each in rows}) > 1}


def _tricks(rows: Sequence[Cells]) -> pd.DataFrame:
    """What a search without each trick loses of its speed, and how much repeated measurements differ."""
    table = pd.DataFrame(rows)
    saves, spread = ((100 * table[name].astype(float)).round().astype(int).astype(str) for name in ("saves", "spread"))
    told = table.assign(told=saves + " (" + spread + ")")
    wide = told.pivot_table("told", ["trick", "kept", "search"], "precision", "first", sort=False)
    return wide.add_suffix(", % (spread)").reset_index()
