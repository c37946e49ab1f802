"""The ladder of presets: what each rung costs and reads, as measured by the committed runs; and a job's plan."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, median

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.paths import COMMITTED
from hmerbench.benchmarks.printing import show
from hmerbench.benchmarks.report.paper import YEAR, reference
from hmerbench.benchmarks.report.presets import number_range
from hmerbench.benchmarks.resolve import PRESETS
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import AnyRun, shipped

RECIPE = "comer-fusion"  # the row that shows how well a preset reads
COST, READS = "training a row of Table 1", f"Fusion's ExpRate on CROHME {YEAR}"  # headings


def ladder(root: Path = COMMITTED) -> list[dict[str, str]]:
    """The rows of the table that `ls` prints and README shows: what a preset costs and reads, on what it runs, what it
    is for. The paper's own is as reported, as nobody has run it here."""
    rungs, runs_on, purposes = [], shipped("presets", "runs_on"), shipped("presets")
    for preset in PRESETS:
        cost, reads = measured_cost(preset, root=root), _rate(preset, root)
        if preset == "paper":
            (fusion,) = (row for row in reference()["table1"] if row["model"] == "CoMER (Fusion)")
            cost = cost or f"{reference()['training']} (reported)"
            reads = reads or f"{fusion['exprate']:.1f} % (reported)"
        cost = cost or ("minutes" if preset == PRESETS[0] else "not measured" if reads else "not yet run")
        rung = {"preset": preset, COST: cost, READS: reads or "–"}
        rungs.append(rung | {"runs on": runs_on[preset], "what for": purposes[preset]})
    return rungs


def advice(preset: str) -> str:
    """What to know before and after a job of the rung that reads next to nothing: the next one; empty for others."""
    if preset != PRESETS[0] or (above := ladder()[1])[READS] == "–":
        return ""
    return (
        f"{preset} shows that every stage works and reads next to nothing of CROHME; "
        f"PRESET={above['preset']} reads {above[READS]} of {YEAR} after {above[COST]} a row"
    )


def measured_cost(preset: str, recipe: str = "", root: Path = COMMITTED) -> str:
    """Core-minutes of training of the committed runs at a preset, of a recipe or of Table 1; empty without any."""
    rows = [recipe] if recipe else [row for row, names in reference()["recipes"].items() if "table1" in names]
    runs = [RunFolder(path) for row in rows for path in root.glob(f"{row}/{preset}-seed*")]
    minutes = number_range([minutes for run in runs if (minutes := run.core_minutes)])
    return f"{minutes} core-minutes" if minutes else ""


def _rate(preset: str, root: Path) -> str:
    """Mean ExpRate of the committed runs of `RECIPE`; empty without any."""
    runs = [RunFolder(path).scores for path in root.glob(f"{RECIPE}/{preset}-seed*")]
    rates = [100 * scores[YEAR].exact / scores[YEAR].n for scores in runs if YEAR in scores]
    return f"{mean(rates):.1f} %" if rates else ""


def show_plan(runs: Sequence[AnyRun], splits: Sequence[str]) -> None:
    """Print, before a job begins, what is done of each run, and how long its training will take."""
    rows = []
    for run in runs:
        done = ["trained", *(split for split in splits if run.scored(split))] if run.trained else []
        row = {"row": run.recipe, "seed": run.seed, "already done": ", ".join(done) or "-"}
        rows.append(row | {"training time": "-" if run.trained else expected_time(run)})
    of = f"preset {runs[0].preset}" if runs[0].preset else f"language models on {runs[0].data}"
    show(f"plan: {of}, test sets {', '.join(splits)}", rows)


def expected_time(run: AnyRun) -> str:
    """How long a training will take, by those finished here, or else by the committed ones."""
    if (seconds := expected_seconds(run)) is not None:
        return f"~{seconds:.0f} s" if seconds < 120 else f"~{seconds / 60:.0f} min"
    return (run.data == "crohme" and measured_cost(run.preset, run.recipe)) or "unknown"


def expected_seconds(run: AnyRun) -> float | None:
    """Median duration of the finished trainings in the same workspace that are alike: at a recognizer's preset, or of a
    language model's recipe; None if there are none."""
    alike = f"*/{run.preset}-seed*" if run.preset else f"{run.path.parent.name}/*"
    durations = list[float]()
    for other in map(type(run), run.path.parents[1].glob(alike)):
        with suppress(UserError):  # a damaged file there is no fault of this run
            durations += other.seconds[-1:] if other.trained else []
    return median(durations) if durations else None
