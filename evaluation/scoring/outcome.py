"""What predictions and their truth come to: by the LgEval-compatible scripts `tex2symlg` and `evaluate`, run as
subprocesses, or by the same code in this process.

LGEVAL_BIN names other scripts to run instead of ours, such as the official ones: a folder, or several separated
by ":", with both scripts. A file that gets lost on the way is an error, never a silent zero.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from hmerbench.evaluation import InputError, symlg
from hmerbench.evaluation.lgeval import metrics, results_folder
from hmerbench.evaluation.lgeval.label_graph import Graph
from hmerbench.evaluation.scoring.conventions import neutral, takes_limits
from hmerbench.evaluation.scoring.metrics import WITHIN, Expression, counts_of
from hmerbench.evaluation.symlg import PAPER, Rules
from hmerbench.evaluation.symlg.formula import prediction_file

FOLDERS = ("result", "pred_symlg", "gt_symlg", "Results_pred_symlg")  # what a run writes in its workdir
OWN_SCRIPTS = Path(__file__).resolve().parents[1] / "bin"

Metrics = dict[str, dict[str, float]]  # LgEval's fields of every expression, by its id


class Outcome(NamedTuple):
    """What a set of expressions comes to."""

    counts: dict[str, int]  # n, and METRICS but those that need captions
    metrics: Metrics
    reasons: dict[str, str]  # why a prediction does not convert, by its id


def scripts() -> str:
    """Which scripts are in use: the folder or folders of LGEVAL_BIN, or our own."""
    return os.environ.get("LGEVAL_BIN") or str(OWN_SCRIPTS)


def own_scripts() -> bool:
    return scripts() == str(OWN_SCRIPTS)


def run_scripts(
    predictions: Mapping[str, str], truth: Mapping[str, str], workdir: Path, rules: Rules = PAPER
) -> Outcome:
    """Convert and evaluate in `workdir`, which has none of FOLDERS yet. Raises InputError if a script fails or loses
    files."""
    for folder, texts, ending in (("result", predictions, ".txt"), ("gt_symlg", truth, ".lg")):
        (workdir / folder).mkdir(parents=True)
        for key, text in texts.items():
            results_folder.put(os.path.join(workdir, folder, key + ending), text)
    hint = run_script("tex2symlg", ["result", "pred_symlg"], workdir, rules)
    symlgs, results = workdir / "pred_symlg", str(workdir / "Results_pred_symlg")
    symlgs.mkdir(exist_ok=True)
    absent = [key for key in predictions if not (symlgs / f"{key}.lg").exists()]
    reasons = {key: found for key in absent if isinstance(found := converted(predictions[key], rules), str)}
    if lost := [key for key in absent if key not in reasons]:
        raise InputError(f"{scripts()}: tex2symlg lost {len(lost)} of {len(predictions)} files ({lost[0]}, ...){hint}")
    hint = run_script("evaluate", ["pred_symlg", "gt_symlg"], workdir, rules)
    counts = results_folder.read_summary(f"{results}/Summary.txt")
    rows = results_folder.read_metrics(results)
    if counts["n"] != len(truth) or rows.keys() != truth.keys():
        raise InputError(f"{scripts()}: evaluate scored {counts['n']} of {len(truth)} expressions{hint}")
    recounted = _counts(rows)
    if any(counts[metric.count] != recounted[metric.count] for metric in WITHIN):
        raise InputError(f"{scripts()}: Summary.txt and the metrics of the files disagree")
    return Outcome(recounted, rows, reasons)


def in_workdir(
    predictions: Mapping[str, str], truth: Mapping[str, str], workdir: Path, sources: Sequence[Path], rules: Rules
) -> Outcome:
    """The result of `run_scripts`, whose files are kept in `workdir`. Raises InputError where they would replace more
    than an earlier scoring, or one of the `sources`."""
    workdir.mkdir(parents=True, exist_ok=True)
    held = {path.name for path in workdir.iterdir() if not path.name.startswith(".")}
    inside = any(workdir.resolve() in path.resolve().parents for path in sources)
    scored = (workdir / "Results_pred_symlg" / "Metrics").is_dir()
    if (ours := held & {*FOLDERS}) and (held != ours or inside or not scored):
        raise InputError(f"{workdir}: its {min(ours)} would be replaced; use a separate folder as workdir")
    # apart: another scoring in the same workdir must not mix its files with these
    with tempfile.TemporaryDirectory(prefix=".scoring", dir=workdir) as scratch:
        outcome = run_scripts(predictions, truth, Path(scratch), rules)
        for name in FOLDERS:  # the results last: by them a workdir is known, also after a kill
            if (workdir / name).exists():
                (workdir / name).rename(Path(scratch, f"old_{name}"))
            Path(scratch, name).rename(workdir / name)
    return outcome


def run_script(name: str, arguments: list[str], workdir: Path, rules: Rules) -> str:
    """Run one script and return its last line on stderr, to append to an error message. LGEVAL_BIN's scripts ignore
    `rules`."""
    if own_scripts():
        options = ["--edition", rules.edition.name]
        options += ["--reading", rules.reading.name] if name == "tex2symlg" else []
        command = [sys.executable, str(OWN_SCRIPTS / name), *arguments, *options]
    elif path := shutil.which(name, path=scripts()):
        command = [os.path.abspath(path), *arguments]
    else:
        raise InputError(f"LGEVAL_BIN={scripts()}: holds no executable {name}")
    try:
        done = subprocess.run(command, cwd=workdir, capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be run ({error.strerror})") from None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode and own_scripts():
        raise InputError(f"{name}: {lines[-1] if lines else 'failed'}")
    return f"; it said: {lines[-1][:200]}" if lines else ""


def in_process(predictions: Mapping[str, str], truth: Mapping[str, Graph], rules: Rules = PAPER) -> Outcome:
    """The result of `run_scripts`, by our own code in this process and without files."""
    seen = neutral if rules.neutral else lambda graph: graph
    rows, reasons = Metrics(), dict[str, str]()
    for key, true in truth.items():  # one prediction's graph at a time: a list of a hundred MB has gigabytes of them
        graph = converted(predictions[key], rules) if key in predictions else symlg.EMPTY_GRAPH
        if isinstance(graph, str):
            reasons[key], graph = graph, symlg.EMPTY_GRAPH
        rows[key] = metrics.compare_graphs(seen(graph), seen(true), rules.edition.inter).metrics
    return Outcome(_counts(rows), rows, reasons)


def neutral_exact(predictions: Mapping[str, str], truth: Mapping[str, Graph], exact: Set[str], rules: Rules) -> int:
    """How many are right if limits make no difference: the `exact` ones, and of those whose truth has an operator that
    takes limits, the ones that differ in nothing else."""
    asked = {key: graph for key, graph in truth.items() if key not in exact and takes_limits(graph)}
    return len(exact) + in_process(predictions, asked, rules._replace(neutral=True)).counts.get("exact", 0)


def _counts(rows: Metrics) -> dict[str, int]:
    return counts_of(Expression.compared(key, values) for key, values in rows.items())


def converted(text: str, rules: Rules) -> symlg.SymLG | str:
    """The symLG of a prediction file's text, or the reason why it has none."""
    try:
        return symlg.from_latex(symlg.formula_in(text), rules)
    except symlg.Unconverted as reason:
        return str(reason)


# --- self-check ------------------------------------------------------------------------------------------

# prediction, truth, and the official scorer's D_B
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


def self_check() -> list[str]:
    """Run the scripts in use on ten expressions with known error counts; a line for each they get wrong."""
    cases = {f"case{k}": case for k, case in enumerate(CASES)}
    predictions = {key: prediction_file(key, predicted.split()) for key, (predicted, _, _) in cases.items()}
    truth = {key: symlg.lg_text(symlg.from_latex(true), key) for key, (_, true, _) in cases.items()}
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = run_scripts(predictions, truth, Path(folder)).metrics
        return [
            f"{predicted!r} against {true!r}: {int(rows[key]['D_B'])} errors, should be {errors}"
            for key, (predicted, true, errors) in cases.items()
            if rows[key]["D_B"] != errors
        ]
    except InputError as error:
        return [str(error)]
