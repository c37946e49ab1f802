"""What the documents under results/ are written with and read from: templates, tables in Markdown and, for a paper's
\\input, in LaTeX with booktabs (and longtable, if a table does not fit on a page), frames of pandas."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation import csv_text
from hmerbench.evaluation.scoring.metrics import TABULATED


def from_template(name: str, **content: Any) -> str:
    """The document of templates/NAME. Raises jinja2.UndefinedError for content that the template needs and lacks."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    text = resources.files("hmerbench.benchmarks.report").joinpath("templates", name).read_text("utf-8")
    return environment.from_string(text).render(content)


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """Write each file atomically; return the paths."""
    for path, text in texts.items():
        write_atomically(path, text)
    return list(texts)


def markdown(table: pd.DataFrame | Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown, without a line end; cells that a row lacks are empty."""
    return pd.DataFrame(table).fillna("").to_markdown(index=False, disable_numparse=True)


@contextmanager
def undamaged(*paths: Path, fix: str) -> Iterator[None]:
    """Raise UserError, with the `fix`, where the block does not find in tables what the suite writes into them."""
    try:
        yield
    except (IndexError, KeyError, ValueError):
        raise UserError(f"{' or '.join(map(str, paths))}: damaged or incomplete; restore it, or {fix}") from None


def read_frame(path: Path, dtype: type | None = None) -> pd.DataFrame:
    """The frame in a .csv file that a command wrote. Raises UserError for what pandas would repair in silence."""
    read_table(path)
    return pd.read_csv(path, dtype=dtype)  # type: ignore[arg-type]


def update_table(path: Path, rows: Sequence[dict[str, Any]], key: Sequence[str]) -> list[dict[str, Any]]:
    """Write rows into a .csv file, each in place of that with the same `key`; others are kept. Return all.

    Raises UserError for a table with other columns, which is kept, and for a damaged one.
    """
    lines: list[dict[str, Any]] = [*(read_table(path) if path.exists() else []), *rows]
    if any(line.keys() != rows[-1].keys() for line in lines):
        raise UserError(f"{path}: has other columns than {', '.join(rows[-1])}; delete it and measure again")
    every = [*{tuple(str(line[name]) for name in key): line for line in lines}.values()]
    write_atomically(path, csv_text([*rows[-1]], every))
    return every


# -------------------------------------------------------------------------------------------------------------- LaTeX


ERROR_RATES = {metric.rate: metric.heading for metric in TABULATED[1:]}  # in Table 2 only
LONG = 45  # rows that fit on a page
HEADINGS = {
    "model": "Model",
    "scale_aug": "scale",
    "self_cov": "self",
    "cross_cov": "cross",
    "source": "Source",
    "seeds": "Seeds",
    "exprate": "ExpRate",
    "interval": r"95\,\%",
    **{name: re.sub(r"≤ (\d)", r"$\\le \1$", heading) for name, heading in ERROR_RATES.items()},
}
LEFT = ("model", "source")
FLAGS = ("scale_aug", "self_cov", "cross_cov")  # in Table 1 only
SIGNS = {"–": r"\multicolumn{1}{c}{--}", "✓": r"$\bullet$", "✗": r"$\circ$"}
SOURCES = {
    "reported": r"\emph{reported}: the paper's numbers.",
    "reproduced": r"\emph{reproduced}: runs of this suite at the preset named, means $\pm$ standard "
    "deviations over their seeds; with +, also trained on parts or alterations of the training expressions.",
    "external": r"\emph{external}: likewise, but trained by a program outside this suite, at least in part.",
    "local": r"\emph{local}: runs of one machine that are not checked in, likewise.",
}
RATES = (
    r"ExpRate: expressions without error, in percent (LgEval on symLG), with its 95\,\% interval over writers (and "
    r"seeds, where they differ); of reported rates, over the $n$ images."
)


def latex_table(cells: pd.DataFrame, title: str, label: str) -> str:
    """Format a table as LaTeX. `cells` holds text as formatted by tables.py (–: unknown; ✓, ✗: flags)."""
    frame = cells.sort_values("dataset", key=lambda names: pd.factorize(names)[0], kind="stable")  # as first seen
    flags = all(flag in frame for flag in FLAGS)
    columns = [name for name in HEADINGS if name not in (ERROR_RATES if flags else FLAGS)]
    legend = r"$\le k$: with at most $k$ errors."
    if flags:
        legend = r"scale: scale augmentation; self, cross: coverage ($\bullet$ with, $\circ$ without)."
    sources = [text for source, text in SOURCES.items() if source in set(frame["source"])]
    caption = " ".join([f"{escaped(title[0].upper() + title[1:])}.", RATES, legend, *sources])
    style = _body(frame, columns).rename(columns=HEADINGS).style.hide(axis="index")
    layout = "".join("l" if name in LEFT else "c" if name in (*FLAGS, "seeds") else "r" for name in columns)
    options = {"hrules": True, "column_format": layout, "caption": caption, "label": label}
    if len(frame) > LONG:
        text = style.to_latex(environment="longtable", **options)
        return "{\\footnotesize\\setlength{\\tabcolsep}{2pt}\n" + text + "}\n"
    commands = {"vspace": ":{1ex};", "footnotesize": ":;", "setlength": r":{\tabcolsep}{2pt};"}
    style.set_table_styles([{"selector": command, "props": value} for command, value in commands.items()])
    return style.to_latex(position="tbp", position_float="centering", **options)


def escaped(text: str) -> str:
    signs = {sign: "\\" + sign for sign in "&%$#_{}"} | {sign: f"{{{sign}}}" for sign in "[]"} | {"–": "--"}
    signs |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": "$<$", ">": "$>$"}
    return text.translate(str.maketrans(signs))


def _body(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The cells as LaTeX. A line above each set gives its name and n; a model is named only where it changes."""
    rows = []
    previous = ("", "", "")
    for row in frame.to_dict("records"):
        row["source"] += "" if row["preset"] == "–" else f", {row['preset'].replace(' + data', '+')}"
        group = row["dataset"], row["n"], row["model"]
        cells = [SIGNS.get(row[name]) or escaped(row[name]) for name in columns]
        if row["sd"] != "–":
            cells[columns.index("exprate")] += rf" $\pm$ {row['sd']}"
        if group == previous:
            cells[0] = ""
        if group[:2] != previous[:2]:
            rule = "\\midrule\n" if rows else ""
            name = f"\\multicolumn{{{len(columns)}}}{{l}}{{\\emph{{{escaped(row['dataset'])}}}, $n = {row['n']}$}}"
            cells[0] = f"{rule}{name} \\\\*\n{cells[0]}"
        rows.append(cells)
        previous = group
    return pd.DataFrame(rows, columns=columns)
