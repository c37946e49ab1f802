"""The LgEval-compatible scripts, run as subprocesses: `tex2symlg`, then `evaluate`.

LGEVAL_BIN puts another set of scripts (the official one, say) in the place of ours: a folder, or several
divided by ":", that hold both names. Whatever the set, its files are counted afterwards; a file that got
lost on the way is an error, never a silent zero.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evaluation import InputError, symlg
from evaluation.lgeval import metrics, results_folder
from evaluation.lgeval.label_graph import Graph
from evaluation.scoring.inputs import prediction_file
from evaluation.symlg import PAPER, Rules

FOLDERS = {"result", "pred_symlg", "gt_symlg", "Results_pred_symlg"}  # what a run writes in its workdir
OWN_SCRIPTS = Path(__file__).resolve().parents[1] / "bin"


def scripts() -> str:
    """Which scripts are in use: the folder or folders of LGEVAL_BIN, or our own."""
    return os.environ.get("LGEVAL_BIN") or str(OWN_SCRIPTS)


def own_scripts() -> bool:
    return scripts() == str(OWN_SCRIPTS)


def _command(name: str) -> list[str]:
    if own_scripts():
        return [sys.executable, str(OWN_SCRIPTS / name)]
    path = shutil.which(name, path=scripts())
    if path is None:
        raise InputError(f"LGEVAL_BIN={scripts()}: holds no {name} that can be run")
    return [os.path.abspath(path)]


def run_scripts(
    predictions: dict[str, str], truth: dict[str, str], workdir: Path, rules: Rules = PAPER
) -> tuple[dict[str, int], dict[str, dict[str, float]]]:
    """Convert and evaluate in `workdir` (older results there are replaced). Returns the counts of
    Summary.txt and
    every file's metrics. Raises InputError if a script fails or files got lost."""
    for name in FOLDERS:
        shutil.rmtree(workdir / name, ignore_errors=True)
    write_all(workdir / "result", predictions, ".txt")
    write_all(workdir / "gt_symlg", truth, ".lg")
    output = run_script("tex2symlg", ["result", "pred_symlg", *options(rules)], workdir)
    (workdir / "pred_symlg").mkdir(exist_ok=True)
    lost = [
        key
        for key, text in predictions.items()
        if not (workdir / "pred_symlg" / f"{key}.lg").exists() and converted(text, rules) is not None
    ]
    if lost:
        raise InputError(
            f"{scripts()}: tex2symlg lost {len(lost)} of {len(predictions)} files ({lost[0]}, ...){output}"
        )
    output = run_script("evaluate", ["pred_symlg", "gt_symlg", *options(rules, edition_only=True)], workdir)
    counts = results_folder.read_summary(str(workdir / "Results_pred_symlg" / "Summary.txt"))
    metrics = results_folder.read_file_errors(str(workdir / "Results_pred_symlg"))
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
    if done.returncode and own_scripts():
        raise InputError(f"{name}: {words[-1] if words else 'failed'}")
    return f"; it said: {words[-1][:200]}" if words else ""


def options(rules: Rules, edition_only: bool = False) -> list[str]:
    """The options of our scripts; LGEVAL_BIN's are what they are."""
    if not own_scripts():
        return []
    reading = [] if edition_only else ["--reading", rules.reading.name]
    return [*reading, "--edition", rules.edition.name]


def converted(text: str, rules: Rules = PAPER) -> symlg.SymLG | None:
    """The symLG of a prediction file's text, None where it has none."""
    try:
        return symlg.from_latex(symlg.formula_in(text), rules)
    except symlg.Unconverted:
        return None


def in_process(
    predictions: dict[str, str], truth: Mapping[str, Graph], rules: Rules = PAPER
) -> tuple[dict[str, int], dict[str, dict[str, float]], set[str]]:
    """What `run_scripts` gives, by our own code in this process and without a file; and the ids that converted."""
    rows, found = {}, set()
    for key, true in truth.items():
        graph = converted(predictions[key], rules) if key in predictions else None
        if graph is not None:
            found.add(key)
        rows[key] = metrics.compare(graph or symlg.EMPTY_GRAPH, true, rules.edition.inter).metrics
    errors = [row["D_B"] for row in rows.values()]
    counts = {"n": len(rows), "exact": errors.count(0)}
    counts |= {f"le{k}": sum(error <= k for error in errors) for k in (1, 2, 3)}
    counts["structure"] = sum(row["hasCorrectStructure"] == 1 for row in rows.values())
    return counts, rows, found


def write_all(folder: Path, texts: dict[str, str], ending: str) -> None:
    """Write texts as NAME + ending in a new folder."""
    folder.mkdir(parents=True)
    for key, text in texts.items():
        results_folder.put(os.path.join(folder, key + ending), text)


# --- self-check ------------------------------------------------------------------------------------------

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
    own = own_scripts()
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
