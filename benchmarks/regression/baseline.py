"""CI for numbers: the fixed job (fixed_job.py) against results/baseline.json.

Scores of fixed predictions must be equal, numerics equal within rounding. Trained metrics must lie within the
prediction interval of recorded runs: the range in which one more run of the same program falls, but for FALSE_ALARMS
of all such comparisons (exactly so for normal values; a test judges every recorded run by the others). The baseline
holds those runs themselves, where they were made, and why it was ever changed.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.config import first_fault, flat
from benchmarks.data.archive import Archive, open_archive
from benchmarks.data.synthetic import embedded
from benchmarks.environment import environment, revision
from benchmarks.errors import UserError
from benchmarks.files import write_atomically
from benchmarks.regression import fixed_job
from evaluation.scoring.stats import prediction_interval

PARTS = ("scores", "numerics", "training")
ROUNDING = 1e-5  # relative; instruction sets from SSE4 to AVX-512 differ by 2e-7
FALSE_ALARMS = 0.01  # of all comparisons of unchanged programs, all trained metrics together
RUNS, FIRST_SEED = 20, 101  # that are recorded
MOST_SHOWN = 30  # differing items in the table


class Recorded(BaseModel):
    """Runs of the short training on one set: what the interval is made of."""

    model_config = ConfigDict(extra="forbid")
    settings: dict[str, Any]  # the resolved configuration, flat, without the seed
    environment: dict[str, Any]
    runs: list[dict[str, float]]  # seed and metrics


class Baseline(BaseModel):
    """What results/baseline.json holds."""

    model_config = ConfigDict(extra="forbid")
    format: str = "hmerbench-baseline-1"
    scores: fixed_job.Values = {}
    numerics: fixed_job.Values = {}
    training: dict[str, Recorded] = {}  # by the archive's name
    history: list[dict[str, Any]] = []  # of updates: when, why, at which revision, what changed


@dataclass(frozen=True)
class Row:
    """One item of the comparison, as the table shows it; `verdict` is ok, changed, new or gone."""

    item: str
    baseline: str
    now: str
    allowed: str
    verdict: str

    @property
    def bad(self) -> bool:
        """Whether it is a reason to fail."""
        return self.verdict in ("changed", "gone")


@dataclass(frozen=True)
class Measured:
    """What the fixed job came to here; training and its settings by the archive's name."""

    scores: fixed_job.Values
    numerics: fixed_job.Values
    training: dict[str, dict[str, float]]
    settings: dict[str, dict[str, Any]]


def regress(crohme: Path | None, path: Path, parts: Iterable[str] = PARTS) -> bool:
    """Measures `parts`, prints the table of changes (also to $GITHUB_STEP_SUMMARY); whether all is as it was.

    Raises UserError for a baseline that is missing or damaged, before anything is measured.
    """
    baseline, parts = read(path), check_parts(parts)
    measured = measure(open_archives(crohme, path), path, parts)
    rows = compare(baseline, measured, parts, crohme is not None)
    text = markdown(rows, baseline, measured)
    print(text, end="")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    return not any(row.bad for row in rows)


def update(crohme: Path | None, path: Path, reason: str, parts: Iterable[str] = PARTS, record: int = 0) -> None:
    """Accepts what is measured now as the baseline and keeps the reason.

    Recorded runs stay while the new one lies within their interval; else RUNS, or `record` in any case, are made again.
    CROHME's items stay as they are where it is not given. Raises UserError for an empty reason.
    """
    if not reason.strip():
        raise UserError("a reason is needed to change the baseline: make regress-update REASON='why it may differ'")
    baseline, parts = read(path) if path.exists() else Baseline(), check_parts(parts)
    archives = open_archives(crohme, path)
    measured = measure(archives, path, [part for part in parts if not (record and part == "training")])
    rows = compare(baseline, measured, parts, crohme is not None)
    changed = [row.item for row in rows if row.bad]
    changed += [f"{new} new items"] if (new := sum(row.verdict == "new" for row in rows)) else []
    for name, archive in archives.items() if "training" in parts else ():
        if record or any(row.verdict != "ok" for row in trained_rows(baseline, name, measured.training[name])):
            baseline.training[name] = recorded(archive, record or RUNS, path.parent / "local/regress")
            changed.append(f"{name} training, {len(baseline.training[name].runs)} runs")
    if "scores" in parts:
        kept = {} if crohme else {item: value for item, value in baseline.scores.items() if _of_crohme(item)}
        baseline.scores = dict(sorted({**kept, **measured.scores}.items()))
    if "numerics" in parts:
        baseline.numerics = measured.numerics
    entry = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "reason": reason.strip(), "revision": revision()}
    baseline.history.append(entry | {"changed": changed, "versions": versions()})
    write_atomically(path, json.dumps(baseline.model_dump(), indent=1, ensure_ascii=False) + "\n")
    print(f"{path}: {', '.join(changed[:5]) or 'nothing'} changed{', ...' * (len(changed) > 5)}")


def recorded(archive: Archive, runs: int, folder: Path) -> Recorded:
    """The short training at `runs` seeds. Each run is kept in `folder` as it ends, so that a stopped recording of the
    same program with the same settings resumes where it left off."""
    path = folder / f"{archive.name}-{fixed_job.training_config(archive, 0).digest}-{program_digest()}.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for seed in range(FIRST_SEED + len(done), FIRST_SEED + runs):
        done.append({"seed": seed, **fixed_job.trained(archive, seed)})
        write_atomically(path, "".join(json.dumps(run) + "\n" for run in done))
        print(f"{archive.name}: {len(done)} of {runs} runs recorded", flush=True)
    return Recorded(settings=settings(archive), environment=environment(torch.device("cpu")), runs=done[:runs])


def open_archives(crohme: Path | None, path: Path) -> dict[str, Archive]:
    """The embedded set, made on the spot, and CROHME where it is given."""
    archives = {"embedded": open_archive(embedded(path.parent / "local" / "embedded" / "data.zip"))}
    if crohme is not None:
        archives["crohme"] = open_archive(crohme)
        if archives["crohme"].name != "crohme":
            raise UserError(f"{crohme}: the baseline is of CROHME as published, this is a {archives['crohme'].edition}")
    return archives


def measure(archives: Mapping[str, Archive], path: Path, parts: Iterable[str]) -> Measured:
    """Does the `parts` of the fixed job."""
    scores = numerics = {}
    if "scores" in parts:
        scores = fixed_job.scores(archives["embedded"], archives.get("crohme"), path.parent / "reproduced")
    if "numerics" in parts:
        numerics = fixed_job.numerics()
    training, chosen = {}, {}
    for name, archive in archives.items() if "training" in parts else ():
        training[name], chosen[name] = fixed_job.trained(archive, fixed_job.GATE_SEED), settings(archive)
    return Measured(scores, numerics, training, chosen)


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    return {name: metadata.version(name) for name in ("torch", "numpy", "opencv-python-headless", "matplotlib")}


def program_digest() -> str:
    """Eight hex digits over all sources, as any of them may change what a training comes to."""
    root = Path(__file__).parents[2]
    sources = (path for name in ("benchmarks", "models", "evaluation") for path in (root / name).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()[:8]


def settings(archive: Archive) -> dict[str, Any]:
    """The configuration of the short training, one level deep; the seed is what differs between runs."""
    return flat(fixed_job.training_config(archive, 0).model_dump(mode="json", exclude={"seed"}))


def compare(baseline: Baseline, measured: Measured, parts: Iterable[str], with_crohme: bool) -> list[Row]:
    """A row for every item of `parts` that can be judged here: CROHME's only with CROHME."""
    rows = []
    if "scores" in parts:
        before = {item: value for item, value in baseline.scores.items() if with_crohme or not _of_crohme(item)}
        rows += [_row(item, before.get(item), measured.scores.get(item), 0) for item in {**before, **measured.scores}]
    if "numerics" in parts:
        items = {**baseline.numerics, **measured.numerics}
        rows += [_row(item, baseline.numerics.get(item), measured.numerics.get(item), ROUNDING) for item in items]
    for name, metrics in measured.training.items():
        rows += trained_rows(baseline, name, metrics)
    return rows


def _row(item: str, before: float | str | None, now: float | str | None, tolerance: float) -> Row:
    if before is None or now is None:
        verdict = "new" if before is None else "gone"
    elif isinstance(before, str) or isinstance(now, str):
        verdict = "ok" if before == now else "changed"
    else:
        verdict = "ok" if math.isclose(before, now, rel_tol=tolerance) else "changed"
    return Row(item, _text(before), _text(now), f"± {tolerance:g} of it" if tolerance else "equal", verdict)


def trained_rows(baseline: Baseline, name: str, metrics: Mapping[str, float]) -> list[Row]:
    """A row for every trained metric: does it lie where one more of the recorded runs falls?

    FALSE_ALARMS is shared out evenly over all metrics of all sets.
    """
    count = sum(len(recorded.runs[0]) - 1 for recorded in baseline.training.values())  # without the seed
    runs = baseline.training[name].runs if name in baseline.training else [{}]
    rows = []
    for metric, value in metrics.items():
        item = f"{name} training: {metric}"
        if metric not in runs[0]:
            rows.append(Row(item, "–", _text(value), "–", "new"))
            continue
        low, high = prediction_interval([run[metric] for run in runs], 1 - FALSE_ALARMS / count)
        verdict = "ok" if low <= value <= high else "changed"
        rows.append(Row(item, f"mean {(low + high) / 2:.4f}", f"{value:.4f}", f"{low:.4f} to {high:.4f}", verdict))
    return rows


def _of_crohme(item: str) -> bool:
    """Whether a score needs CROHME's ground truth; symLG of predictions does not."""
    return not item.startswith("embedded") and not item.endswith(": symLG")


def _text(value: float | str | None) -> str:
    if value is None:
        return "–"
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def read(path: Path) -> Baseline:
    """The baseline in a file. Raises UserError where it is missing or damaged."""
    try:
        return Baseline.model_validate_json(path.read_text(encoding="utf-8"), strict=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no baseline to compare with; git restore it, or make one: regress-update") from None
    except (ValidationError, UnicodeDecodeError) as error:
        words = first_fault(error) if isinstance(error, ValidationError) else "not UTF-8"
        raise UserError(f"{path}: damaged baseline ({words}); git restore it") from None


def check_parts(parts: Iterable[str]) -> tuple[str, ...]:
    """The parts, all where none is named. Raises UserError for an unknown one."""
    parts = tuple(parts) or PARTS
    for part in parts:
        if part not in PARTS:
            raise UserError(f"no part '{part}' of the fixed job: choose of {', '.join(PARTS)}")
    return parts


def markdown(rows: list[Row], baseline: Baseline, measured: Measured) -> str:
    """What differs and every trained metric as a table; the rest in a count."""
    differ = [row for row in rows if row.verdict != "ok"]
    trained = [row for row in rows if row.verdict == "ok" and " training: " in row.item]
    bad = sum(row.bad for row in rows)
    words = f"{bad} of {len(rows)} items differ" if bad else f"all {len(rows)} items as before"
    lines = [f"### Metrics against the baseline: {words}"]
    if shown := differ[:MOST_SHOWN] + trained:
        frame = pd.DataFrame([vars(row) for row in shown])
        frame["verdict"] = [f"**{row.verdict}**" if row.bad else row.verdict for row in shown]
        lines += [frame.to_markdown(index=False, disable_numparse=True)]
    hidden = f", {len(differ) - MOST_SHOWN} more differ" if len(differ) > MOST_SHOWN else ""
    lines += [f"{len(rows) - len(differ) - len(trained)} more items are as they were{hidden}."]
    for name, chosen in measured.settings.items():
        before = baseline.training[name].settings if name in baseline.training else chosen
        lines += _differences(f"Settings of the {name} training", before, chosen)
    if baseline.history:
        lines += _differences("Versions", baseline.history[-1]["versions"], versions())
    if measured.training:
        counts = " and ".join(f"{len(runs.runs)} {name}" for name, runs in baseline.training.items())
        words = f"{FALSE_ALARMS:.0%} false alarms if they are normal, over all metrics"
        lines += [f"Allowed in training: where one more run falls, by {counts} runs; {words}."]
    return "\n\n".join(lines) + "\n"


def _differences(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changes = [f"{key} {value} → {now[key]}" for key, value in before.items() if now.get(key, value) != value]
    return [f"{what} that differ from the baseline's: {'; '.join(changes)}."] if changes else []
