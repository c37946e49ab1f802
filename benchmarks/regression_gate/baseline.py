"""The regression gate: compare the fixed job (fixed_job.py) with results/baseline.json.

Scores of fixed predictions must be equal, numerics equal within rounding. Trained metrics must lie within the
prediction interval of recorded runs, in which one more run of the same program falls with a probability of at least
1 - FALSE_ALARMS, over all metrics together (each interval is exact for normal values; a test judges every recorded run
by the others).
The baseline holds these runs, their environment, and the reason for every change.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.data.synthetic import embedded
from hmerbench.benchmarks.environment import environment, revision
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.regression_gate import Values, fixed_job
from hmerbench.benchmarks.regression_gate.networks import cost_text
from hmerbench.benchmarks.strict_files import flat, read_plain
from hmerbench.evaluation.scoring.stats import prediction_interval
from hmerbench.models.files import first_fault, one_line

PARTS = ("scores", "numerics", "training")
# Relative tolerances of the numerics by kind; the others must be equal. Largest differences measured, on one thread,
# with oneDNN, ATen, MKL, OpenCV and numpy limited to SSE4.1, AVX2, AVX-512 and AVX-512 with bf16, and of AMD from
# Intel with AMX: networks and searches in float64 5e-14, settings, schedules, batches and handwriting 0, joint reading
# in float32 5e-8, first steps in float32 3e-7 (2.2e-7 is the last digit of a loss). Muon's products in bf16 would make
# that 2.3e-5, so the fixed job computes these in float32.
TOLERANCES = {" network: ": 1e-9, " search: ": 1e-9, " together: ": 1e-9, " schedule: ": 1e-9}
TOLERANCES |= {" first steps: ": 1e-6, " reading: ": 1e-6}
FALSE_ALARMS = 0.01  # highest probability that an unchanged program fails, over all trained metrics
RUNS, FIRST_SEED = 20, 101  # of recorded runs
MAX_SHOWN = 30  # differing items in the table


class Recorded(BaseModel):
    """Runs of the short training on one data set: the recorded ones, from which the intervals are computed, or a new
    one, which is judged."""

    model_config = ConfigDict(extra="forbid")
    settings: dict[str, Any]  # the resolved configuration, flattened, without the seed
    environment: dict[str, Any]
    runs: list[dict[str, float]]  # each with its seed and metrics


class Baseline(BaseModel):
    """Contents of results/baseline.json, or what the fixed job measures now."""

    model_config = ConfigDict(extra="forbid")
    scores: Values = {}
    numerics: Values = {}
    training: dict[str, Recorded] = {}  # by archive name
    history: list[dict[str, Any]] = []  # per update: date, reason, revision, changes, versions


@dataclass(frozen=True)
class Item:
    """One compared item as shown in the table; `verdict` is ok, changed, new or gone."""

    item: str
    baseline: str
    now: str
    allowed: str
    verdict: str

    @property
    def fails(self) -> bool:
        return self.verdict in ("changed", "gone")


def regress(crohme: Path | None, path: Path, parts: Iterable[str] = PARTS) -> bool:
    """Measure `parts` and print the table of changes (also to $GITHUB_STEP_SUMMARY); True if nothing fails.

    Raises UserError, before measuring, if the baseline is missing or damaged.
    """
    baseline, parts = read(path), check_parts(parts)
    measured = measure(open_archives(crohme, path), path, parts)
    rows = judge(baseline, measured, parts, crohme is not None)
    text = markdown(rows, baseline, measured)
    print(text, end="")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    return not any(row.fails for row in rows)


def update(crohme: Path | None, path: Path, reason: str, parts: Iterable[str] = PARTS, record: int = 0) -> None:
    """Make the current measurements the baseline and record the reason.

    Recorded runs are kept if the new run lies within their intervals, otherwise RUNS are recorded again; `record` > 0
    forces that many. Without CROHME, its items are kept. Raises UserError for an empty reason.
    """
    if not reason.strip():
        raise UserError("a reason is needed to change the baseline: make regress-update REASON='why it changes'")
    baseline, parts = read(path) if path.exists() else Baseline(), check_parts(parts)
    archives = open_archives(crohme, path)
    measured = measure(archives, path, [part for part in parts if not (record and part == "training")])
    rows = judge(baseline, measured, parts, crohme is not None)
    changed = [row.item for row in rows if row.fails]
    changed += [f"{new} new items"] if (new := sum(row.verdict == "new" for row in rows)) else []
    for name, archive in archives.items() if "training" in parts else ():
        if record or any(row.verdict != "ok" for row in trained_items(baseline, name, measured.training[name].runs[0])):
            baseline.training[name] = trained(archive, range(FIRST_SEED, FIRST_SEED + (record or RUNS)))
            changed.append(f"{name} training, {len(baseline.training[name].runs)} runs")
    if "scores" in parts:
        kept = {} if crohme else {item: value for item, value in baseline.scores.items() if _needs_crohme(item)}
        baseline.scores = dict(sorted({**kept, **measured.scores}.items()))
    if "numerics" in parts:
        same = {row.item for row in rows if row.verdict == "ok"}  # whose rounding here is no better than the recorded
        recorded = {item: was for item, was in baseline.numerics.items() if item in same}
        baseline.numerics = dict(sorted({**measured.numerics, **recorded}.items()))
    entry = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "reason": reason.strip(), "revision": revision()}
    baseline.history.append(entry | {"changed": changed, "versions": versions()})
    write_atomically(path, json.dumps(baseline.model_dump(), indent=1, ensure_ascii=False) + "\n")
    print(f"{path}: {', '.join(changed[:5]) or 'nothing'} changed{', ...' * (len(changed) > 5)}")


def trained(archive: Archive, seeds: Sequence[int]) -> Recorded:
    """Run the short training with each seed. The settings are the flattened configuration without the seed and without
    the digest of the archive, which also depends on symLG, of which training reads none: an item of the scores watches
    it."""
    runs = list[dict[str, float]]()
    for seed in seeds:
        runs.append({"seed": seed, **fixed_job.short_training(archive, seed)})
        if len(seeds) > 1:
            print(f"{archive.name}: {len(runs)} of {len(seeds)} runs recorded", flush=True)
    config = fixed_job.training_config(archive, 0)
    settings = flat(config.model_dump(mode="json", exclude={"seed": True, "data": {"digest"}}))
    return Recorded(settings=settings, environment=environment(torch.device("cpu")), runs=runs)


def open_archives(crohme: Path | None, path: Path) -> dict[str, Archive]:
    """The embedded set, generated if missing, and CROHME if given. Raises UserError for another edition of CROHME."""
    archives = {"embedded": open_archive(embedded(path.parent / "local" / "embedded" / "data.zip"))}
    if crohme is not None:
        archives["crohme"] = open_archive(crohme)
        if archives["crohme"].name != "crohme":
            raise UserError(f"{crohme}: the baseline needs the published CROHME, not a {archives['crohme'].edition}")
    return archives


def measure(archives: Mapping[str, Archive], path: Path, parts: Iterable[str]) -> Baseline:
    now = Baseline()
    if "scores" in parts:
        now.scores = fixed_job.scores(archives["embedded"], archives.get("crohme"), path.parent / "reproduced")
    if "numerics" in parts:
        now.numerics = fixed_job.numerics()
    if "training" in parts:
        now.training = {name: trained(archive, [fixed_job.GATE_SEED]) for name, archive in archives.items()}
    return now


def versions() -> dict[str, str]:
    """Versions of the packages that affect the numbers."""
    return {name: metadata.version(name) for name in ("torch", "numpy", "opencv-python-headless", "matplotlib")}


def judge(baseline: Baseline, measured: Baseline, parts: Iterable[str], with_crohme: bool) -> list[Item]:
    """One row per item of `parts`; items that need CROHME only if `with_crohme`."""
    scores = {item: value for item, value in baseline.scores.items() if with_crohme or not _needs_crohme(item)}
    before = (scores if "scores" in parts else {}) | (baseline.numerics if "numerics" in parts else {})
    now = measured.scores | measured.numerics
    rows = [measured_item(item, before.get(item), now.get(item)) for item in before | now]
    trained = [trained_items(baseline, name, new.runs[0]) for name, new in measured.training.items()]
    return [*rows, *chain.from_iterable(trained)]


def measured_item(item: str, before: float | str | None, now: float | str | None) -> Item:
    """The row of a score or numeric, compared within the tolerance of its kind."""
    tolerance = next((value for kind, value in TOLERANCES.items() if kind in item), 0.0)
    if before is None or now is None:
        verdict = "new" if before is None else "gone"
    elif isinstance(before, str) or isinstance(now, str):
        verdict = "ok" if before == now else "changed"
    else:
        verdict = "ok" if math.isclose(before, now, rel_tol=tolerance) else "changed"
    return Item(item, _text(before), _text(now), f"± {tolerance:g} of it" if tolerance else "equal", verdict)


def trained_items(baseline: Baseline, name: str, run: Mapping[str, float]) -> list[Item]:
    """One row per metric of a new run: does it lie within the prediction interval of the recorded ones?

    Bonferroni correction: FALSE_ALARMS is divided by the number of metrics of all sets.
    """
    count = sum(len(recorded.runs[0]) - 1 for recorded in baseline.training.values())  # minus the seed
    runs = baseline.training[name].runs if name in baseline.training else [{}]
    rows = []
    for metric in dict.fromkeys([*run, *runs[0]]):
        item, value = f"{name} training: {metric}", run.get(metric)
        if metric == "seed":
            continue
        if value is None or metric not in runs[0]:
            rows.append(replace(measured_item(item, runs[0].get(metric), value), allowed="–"))
            continue
        low, high = prediction_interval([other[metric] for other in runs], 1 - FALSE_ALARMS / count)
        verdict = "ok" if low <= value <= high else "changed"
        rows.append(Item(item, f"mean {(low + high) / 2:.4f}", f"{value:.4f}", f"{low:.4f} to {high:.4f}", verdict))
    return rows


def _needs_crohme(item: str) -> bool:
    """Whether a score needs CROHME's ground truth; the symLG of predictions does not."""
    return not item.startswith("embedded") and not item.endswith(": symLG")


def _text(value: float | str | None) -> str:
    if value is None:
        return "–"
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def read(path: Path) -> Baseline:
    """Read a baseline. Raises UserError if it is missing or damaged."""
    try:
        return Baseline.model_validate_json(json.dumps(read_plain(path)), strict=True)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no baseline; git restore it, or make one with make regress-update") from None
    except ValueError as error:
        words = first_fault(error) if isinstance(error, ValidationError) else one_line(error)
        raise UserError(f"{path}: the baseline is damaged ({words}); git restore it") from None


def check_parts(parts: Iterable[str]) -> tuple[str, ...]:
    """`parts`, or all if empty. Raises UserError for an unknown part."""
    parts = tuple(parts) or PARTS
    for part in parts:
        if part not in PARTS:
            raise UserError(f"the fixed job has no part '{part}': choose from {', '.join(PARTS)}")
    return parts


def markdown(rows: list[Item], baseline: Baseline, measured: Baseline) -> str:
    """A table of differing items and all trained metrics; other items are only counted."""
    differ = [row for row in rows if row.verdict != "ok"]
    trained = [row for row in rows if row.verdict == "ok" and " training: " in row.item]
    failing = sum(row.fails for row in rows)
    words = f"{failing} of {len(rows)} items differ" if failing else f"all {len(rows)} items match"
    if not failing and (new := sum(row.verdict == "new" for row in rows)):
        words = f"none of {len(rows)} items differs, {new} of them new"
    lines = [f"### Metrics against the baseline: {words}"]
    if shown := differ[:MAX_SHOWN] + trained:
        frame = pd.DataFrame([vars(row) for row in shown])
        frame["verdict"] = [f"**{row.verdict}**" if row.fails else row.verdict for row in shown]
        lines += [frame.to_markdown(index=False, disable_numparse=True)]
        hidden = f", {len(differ) - MAX_SHOWN} more differ or are new" if len(differ) > MAX_SHOWN else ""
        lines += [f"{len(rows) - len(differ) - len(trained)} more items match{hidden}."]
    if cost := cost_text(baseline.scores, measured.scores):
        lines += [cost]
    elif failing:
        lines += ["With CROHME=, images are read with committed weights, too, to say what this costs in reading."]
    for name, now in measured.training.items():
        before = baseline.training.get(name, now)
        lines += _differences(f"Settings of the {name} training", before.settings, now.settings)
    if baseline.history:
        lines += _differences("Versions", baseline.history[-1]["versions"], versions())
    if measured.training:
        counts = " and ".join(f"{len(recorded.runs)} {name}" for name, recorded in baseline.training.items())
        words = f"at most {FALSE_ALARMS:.0%} false alarms over all metrics if values are normal"
        lines += [f"Allowed in training: prediction intervals from {counts} runs; {words}."]
    return "\n\n".join(lines) + "\n"


def _differences(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changes = [f"{key} {value} → {now[key]}" for key, value in before.items() if now.get(key, value) != value]
    return [f"{what} that differ from the baseline's: {'; '.join(changes)}."] if changes else []
