"""A score from files of predictions and ground truth, by the LgEval-compatible scripts."""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluation import InputError, symlg
from evaluation.scoring.inputs import GroundTruth, read_ground_truth, read_predictions
from evaluation.scoring.interval import proportion_interval
from evaluation.scoring.lengths import bucket, by_bucket
from evaluation.scoring.run_scripts import FOLDERS, run_scripts

VERSION = "1.0"
NO_FIELDS = {"set": "unknown", "search": "unknown", "select": "unknown"}


@dataclass(frozen=True)
class Score:
    """Counts over the n expressions of a ground truth, and rates in percent. Length and token fields are
    None where no captions are known. `missing`: expressions without a prediction; `unconverted`:
    predictions that are not LaTeX. Both count as wrong. `ci95`: Wilson interval of the expression rate."""

    n: int
    exact: int
    le1: int
    le2: int
    le3: int
    structure: int
    exprate: float
    exprate_le1: float
    exprate_le2: float
    exprate_le3: float
    structure_rate: float
    by_length: list[dict[str, Any]] | None
    token_exact: int | None
    token_exprate: float | None
    ci95: tuple[float, float]
    signature: str
    missing: int
    unconverted: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ci95": list(self.ci95)}

    def __str__(self) -> str:
        return f"{self.signature} = {self.exprate:.2f} ({self.ci95[0]:.1f}–{self.ci95[1]:.1f})"


@dataclass(frozen=True)
class Expression:
    """One row of the per-expression table."""

    id: str
    status: str  # converted, unconverted, missing
    errors: int  # D_B
    label_errors: int  # D_C
    relation_errors: int  # D_L
    exact: bool
    structure: bool
    token_exact: bool | None
    length: int | None
    bucket: str | None


@dataclass(frozen=True)
class Evaluation:
    score: Score
    expressions: list[Expression]
    folder: Path  # holds pred_symlg/, gt_symlg/ and Results_pred_symlg/ while `workdir` lives
    stray: int  # predictions without ground truth, left out


def score(
    predictions: Path,
    ground_truth: str,
    *,
    set_name: str = "unknown",
    search: str = "unknown",
    select: str = "unknown",
    workdir: Path | None = None,
    captions: dict[str, list[str]] | None = None,
) -> Score:
    """Score predictions (folder of ID.txt, zip, .jsonl) against `ARCHIVE.zip:SPLIT`, `FOLDER:SPLIT` or a
    folder
    of .lg. Raises InputError. With `workdir` the scorer's files stay there."""
    fields = {"set": set_name, "search": search, "select": select}
    if workdir is not None:
        return evaluate(predictions, ground_truth, fields, workdir, captions).score
    with tempfile.TemporaryDirectory() as folder:
        return evaluate(predictions, ground_truth, fields, Path(folder), captions).score


def evaluate(
    predictions: Path,
    ground_truth: str,
    fields: dict[str, str],
    workdir: Path,
    captions: dict[str, list[str]] | None = None,
) -> Evaluation:
    """`score` with the table of expressions; `fields` are the signature's set, search, select and, where
    it is not the authors', padding."""
    if odd := [text for text in fields.values() if "|" in text or not text.isprintable()]:
        raise InputError(f"{odd[0]!r}: cannot stand in a signature; leave out | and line breaks")
    found = read_predictions(Path(predictions))
    truth = read_ground_truth(ground_truth)
    if captions is not None:
        truth = GroundTruth(truth.symlg, {key: captions[key] for key in truth.symlg if key in captions})
    if truth.captions is not None and len(truth.captions) < len(truth.symlg):
        raise InputError(f"{ground_truth}: {len(truth.symlg) - len(truth.captions)} expressions have no caption")
    texts = {key: text for key, text in found.items() if key in truth.symlg}
    if not texts:
        raise InputError(f"{predictions}: not one of its {len(found)} ids is in {ground_truth}")
    workdir.mkdir(parents=True, exist_ok=True)
    held = {path.name for path in workdir.iterdir()}
    sources = (Path(predictions).resolve(), Path(ground_truth).resolve())
    if held & FOLDERS and (held - FOLDERS or any(workdir.resolve() in path.parents for path in sources)):
        raise InputError(f"{workdir}: its {min(held & FOLDERS)} would be replaced; give a folder of its own as workdir")
    summary, metrics = run_scripts(texts, truth.symlg, workdir)
    folder = workdir / "pred_symlg"
    converted = {key for key in texts if (folder / f"{key}.lg").exists()}
    rows = [_expression(key, metrics[key], texts.get(key), key in converted, truth.captions) for key in truth.symlg]
    return Evaluation(_score(summary, rows, fields, truth.captions), rows, workdir, len(found) - len(texts))


# --- from files to a score --------------------------------------------------------------------------------


def _tokens(text: str) -> list[str]:
    try:
        return symlg.formula_in(text).split()
    except symlg.Unconverted:
        return []


def _expression(
    key: str,
    metrics: dict[str, float],
    text: str | None,
    converted: bool,
    captions: dict[str, list[str]] | None,
) -> Expression:
    length = len(captions[key]) if captions is not None else None
    return Expression(
        id=key,
        status="missing" if text is None else "converted" if converted else "unconverted",
        errors=int(metrics["D_B"]),
        label_errors=int(metrics["D_C"]),
        relation_errors=int(metrics["D_L"]),
        exact=metrics["D_B"] == 0,
        structure=metrics["hasCorrectStructure"] == 1,
        token_exact=None if captions is None else text is not None and _tokens(text) == captions[key],
        length=length,
        bucket=None if length is None else bucket(length),
    )


def _score(
    counts: dict[str, int],
    rows: list[Expression],
    fields: dict[str, str],
    captions: dict[str, list[str]] | None,
) -> Score:
    n = counts["n"]
    tokens = sum(bool(row.token_exact) for row in rows)
    low, high = proportion_interval(counts["exact"], n)
    signature = f"ExpRate|set:{fields['set']}|n:{n}|metric:symlg|search:{fields['search']}"
    signature += f"|padding:{fields['padding']}" if "padding" in fields else ""
    signature += f"|select:{fields['select']}|v:{VERSION}"
    lengths = {row.id: row.length for row in rows if row.length is not None}
    return Score(
        **counts,
        exprate=_percent(counts["exact"], n),
        exprate_le1=_percent(counts["le1"], n),
        exprate_le2=_percent(counts["le2"], n),
        exprate_le3=_percent(counts["le3"], n),
        structure_rate=_percent(counts["structure"], n),
        by_length=None if captions is None else by_bucket(lengths, {row.id: row.exact for row in rows}),
        token_exact=None if captions is None else tokens,
        token_exprate=None if captions is None else _percent(tokens, n),
        ci95=(round(100 * low, 2), round(100 * high, 2)),
        signature=signature,
        missing=sum(row.status == "missing" for row in rows),
        unconverted=sum(row.status == "unconverted" for row in rows),
    )


def _percent(count: int, n: int) -> float:
    return round(100 * count / n, 2)
