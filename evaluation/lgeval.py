"""Scoring by the LgEval-compatible scripts, run as subprocesses: `tex2symlg`, then `evaluate`.

LGEVAL_BIN puts another set of scripts (the official one, say) in the place of ours: a folder, or several
divided by ":", that hold both names. Whatever the set, its files are counted afterwards; a file that got
lost on the way is an error, never a silent zero.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluation import InputError, results, symlg
from evaluation.inputs import GroundTruth, prediction_file, read_ground_truth, read_predictions
from evaluation.latex import formula_in
from evaluation.lengths import bucket, by_bucket

VERSION = "1.0"
FOLDERS = {"result", "pred_symlg", "gt_symlg", "Results_pred_symlg"}  # what a run writes in its workdir
NO_FIELDS = {"set": "unknown", "search": "unknown", "select": "unknown"}
OWN_SCRIPTS = Path(__file__).resolve().parent / "bin"


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


# --- running the scripts ----------------------------------------------------------------------------------


def scripts() -> str:
    """Which scripts are in use: the folder or folders of LGEVAL_BIN, or our own."""
    return os.environ.get("LGEVAL_BIN") or str(OWN_SCRIPTS)


def _command(name: str) -> list[str]:
    if scripts() == str(OWN_SCRIPTS):
        return [sys.executable, str(OWN_SCRIPTS / name)]
    path = shutil.which(name, path=scripts())
    if path is None:
        raise InputError(f"LGEVAL_BIN={scripts()}: holds no {name} that can be run")
    return [os.path.abspath(path)]


def run_scripts(
    predictions: dict[str, str], truth: dict[str, str], workdir: Path
) -> tuple[dict[str, int], dict[str, dict[str, float]]]:
    """Convert and evaluate in `workdir` (older results there are replaced). Returns the counts of
    Summary.txt and
    every file's metrics. Raises InputError if a script fails or files got lost."""
    for name in FOLDERS:
        shutil.rmtree(workdir / name, ignore_errors=True)
    write_all(workdir / "result", predictions, ".txt")
    write_all(workdir / "gt_symlg", truth, ".lg")
    output = run_script("tex2symlg", ["result", "pred_symlg"], workdir)
    (workdir / "pred_symlg").mkdir(exist_ok=True)
    lost = [
        key
        for key, text in predictions.items()
        if not (workdir / "pred_symlg" / f"{key}.lg").exists() and _converts(text)
    ]
    if lost:
        raise InputError(
            f"{scripts()}: tex2symlg lost {len(lost)} of {len(predictions)} files ({lost[0]}, ...){output}"
        )
    output = run_script("evaluate", ["pred_symlg", "gt_symlg"], workdir)
    counts = results.read_summary(str(workdir / "Results_pred_symlg" / "Summary.txt"))
    metrics = results.read_file_errors(str(workdir / "Results_pred_symlg"))
    if counts["n"] != len(truth) or metrics.keys() != truth.keys():
        raise InputError(f"{scripts()}: evaluate scored {counts['n']} of {len(truth)} expressions{output}")
    if [counts[key] for key in ("exact", "le1", "le2", "le3")] != [
        sum(row["D_B"] <= k for row in metrics.values()) for k in range(4)
    ]:
        raise InputError(f"{scripts()}: Summary.txt and the metrics of the files disagree")
    return counts, metrics


def run_script(name: str, arguments: list[str], workdir: Path) -> str:
    """Run one script; its last words, to be put after an error message."""
    command = _command(name)
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=workdir,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be run ({error.strerror})") from None
    words = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode and scripts() == str(OWN_SCRIPTS):
        raise InputError(f"{name}: {words[-1] if words else 'failed'}")
    return f"; it said: {words[-1][:200]}" if words else ""


def _converts(text: str) -> bool:
    try:
        symlg.from_latex(formula_in(text))
    except symlg.Unconverted:
        return False
    return True


def write_all(folder: Path, texts: dict[str, str], ending: str) -> None:
    """Write texts as NAME + ending in a new folder."""
    folder.mkdir(parents=True)
    for key, text in texts.items():
        results.put(os.path.join(folder, key + ending), text)


# --- from files to a score --------------------------------------------------------------------------------


def _tokens(text: str) -> list[str]:
    try:
        return formula_in(text).split()
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
    from evaluation.stats import proportion_interval  # scipy is slow to import

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


# --- self-check -------------------------------------------------------------------------------------------

# prediction, truth, D_B: what the official scorer says
CASES = (
    ("a + b", "a + b", 0),
    ("a + c", "a + b", 1),
    ("a +", "a + b", 2),
    ("a b + c", "a + c", 4),
    ("x _ 2", "x ^ 2", 4),
    ("x ^ b _ a", "x _ a ^ b", 0),
    ("{ x ^ 2 } ^ 3", "x ^ 2", 0),
    (r"\sum _ { i } x", r"\sum \limits _ { i } x", 4),
    (r"v _ v { } ^ 2 = v _ v ^ 2", "v _ v ^ 2 = v _ v ^ 2", 13),
    ("{ a", "a", 1),
)


@dataclass(frozen=True)
class SelfCheck:
    """Which scripts are in use, and the cases they got wrong (empty: all ten right)."""

    scripts: str
    own: bool
    failures: list[str]


def self_check() -> SelfCheck:
    """Run the scripts in use on ten expressions with known error counts."""
    own = scripts() == str(OWN_SCRIPTS)
    keys = [f"case{k}" for k in range(len(CASES))]
    try:
        with tempfile.TemporaryDirectory() as folder:
            truth_folder = Path(folder) / "truth"
            texts = {key: prediction_file(key, case[1].split()) for key, case in zip(keys, CASES, strict=True)}
            write_all(truth_folder / "tex", texts, ".txt")
            said = run_script("tex2symlg", ["tex", "symlg"], truth_folder)
            truth = {}
            for key in keys:
                path = truth_folder / "symlg" / f"{key}.lg"
                if not path.exists():
                    raise InputError(f"{scripts()}: tex2symlg wrote no {path.name}{said}")
                truth[key] = path.read_text(encoding="utf-8")
            predictions = {key: prediction_file(key, case[0].split()) for key, case in zip(keys, CASES, strict=True)}
            _, metrics = run_scripts(predictions, truth, Path(folder) / "work")
    except InputError as error:
        return SelfCheck(scripts(), own, [str(error)])
    failures = [
        f"{found!r} against {true!r}: {int(metrics[key]['D_B'])} errors, should be {errors}"
        for key, (found, true, errors) in zip(keys, CASES, strict=True)
        if metrics[key]["D_B"] != errors
    ]
    return SelfCheck(scripts(), own, failures)
