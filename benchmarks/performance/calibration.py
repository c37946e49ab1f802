"""`benchmarks calibrate`: what makes a confidence of the evidence of a reading is fitted on held-out training
expressions, and checked on test images, on pictures unlike CROHME's, and on such as show no expression.

results/confidence.csv has a row for each picture that was read for this, with its evidence and whether the reading is
right; recognition/confidence.json has what was fitted to its rows of the set `heldout`, results/confidence.md says how
far a confidence can be trusted. Nothing is fitted to a test set.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import (
    HELD_OUT,
    HELD_OUT_SEED,
    HELD_OUT_SET,
    at_random,
    hold_out,
    sheet,
    strokes_of,
)
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.performance.strange_pictures import KINDS, in_another_pen, nonsense
from hmerbench.benchmarks.recognition.confidence import DOUBTFUL, FEATURES, Calibration, Evidence, evidence
from hmerbench.benchmarks.recognition.predict import SCORES
from hmerbench.benchmarks.recognition.recognizer import FITTED, Recognizer
from hmerbench.benchmarks.report import paper
from hmerbench.benchmarks.report.documents import from_template, markdown
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_plain, read_table
from hmerbench.evaluation import csv_text
from hmerbench.evaluation.scoring.inputs import GroundTruth
from hmerbench.evaluation.scoring.metrics import interval_text
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.models.inference.hypothesis import Hypothesis

SEED = 7  # of the sample of test images, of the pictures, and of the gap by chance
PENS, PENS_SET = 60, "other pens"  # expressions of PENS_FROM that are drawn in other pens
PENS_FROM = paper.YEARS[-1]
EACH, NONSENSE = 8, "no expression"  # pictures of each kind that show none
BEFORE = "per_token"  # what was called confidence before
BEFORE_DOUBTFUL = 0.7  # the threshold of what was called confidence before
YEARS = "all test sets"
USED = ("logp", "steps", "margin")  # the rest adds nothing to them on held-out expressions (`ablation`)
RIDGE = 1e-3  # of the standardized weights, for an image
FOLDS = 10
COLUMNS = ("network", "set", "id", "read", "right", *FEATURES, BEFORE, "confidence")

ORIGIN = ("command", "run", "revision")  # of the held-out readings

Row = dict[str, Any]


# ------------------------------------------------------------------------------------------------------ reading


def read(recognizer: Recognizer, network: str, name: str, pictures: Mapping[str, Any], truth: GroundTruth) -> list[Row]:
    """A row for each picture; `truth` lacks those that show no expression, whose readings are all wrong."""
    found = dict(zip(pictures, recognizer.each(list(pictures.values())), strict=True))
    best = {id_: each.nbest[0] for id_, each in found.items() if not isinstance(each, UserError)}
    latex, every = {id_: each.latex for id_, each in best.items()}, {id_: each.evidence for id_, each in best.items()}
    return as_rows(network, name, latex, every, truth, pictures)


def as_rows(
    network: str,
    name: str,
    latex: Mapping[str, str],
    every: Mapping[str, Evidence],
    truth: GroundTruth,
    ids: Iterable[str],
) -> list[Row]:
    """Rows of expressions, of which some have a reading and its evidence; what is not in `truth` cannot be right."""
    known = {id_: latex.get(id_, "") for id_ in truth.symlg}
    right = evaluate(known, truth, NO_FIELDS).right if known else set()
    rows = []
    for id_ in ids:
        row: Row = {"network": network, "set": name, "id": id_, "read": int(id_ in latex), "right": int(id_ in right)}
        if id_ in latex:
            values = asdict(every[id_]) | {BEFORE: every[id_].per_token}
            row |= {key: round(value, 4) for key, value in values.items()}
        rows.append(row)
    return rows


def heldout(run: RunFolder, archive: Archive) -> list[Row]:
    """Rows of what a trial held out and has read. Raises UserError for a run that is none, or not of CoMER's search."""
    path, alpha = run.path / f"predictions/{HELD_OUT_SET}.jsonl", run.settings.search.alpha
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give a run of `trial`, which has read held-out expressions")
    if not run.settings.model.searcher.endswith(":JointSearch"):
        raise UserError(f"{run.path}: {run.recipe} ranks its hypotheses otherwise; give a trial of CoMER")
    latex, every = dict[str, str](), dict[str, Evidence]()
    numbers: dict[str, int] = {}  # stand for words
    for row in read_plain(path):
        if any("spread" not in each for each in row["nbest"]):
            raise UserError(f"{path}: an earlier version read them; delete the file, then run the same trial again")
        scores = [{key: each[key] for key in SCORES} for each in row["nbest"]]
        ids = [
            tuple(numbers.setdefault(word, len(numbers)) for word in each["tokens"].split()) for each in row["nbest"]
        ]
        found = evidence([Hypothesis(each, **its) for each, its in zip(ids, scores, strict=True)], alpha)
        if best := next(found, None):
            latex[row["id"]], every[row["id"]] = row["tokens"], best[1]
    _, samples = hold_out(archive.samples("train"), HELD_OUT, HELD_OUT_SEED)
    ids = [sample.id for sample in samples]
    name = f"trial of {run.settings.name}"
    return as_rows(name, HELD_OUT_SET, latex, every, archive.truth_of("train", ids), ids)


def checked(run: RunFolder, archive: Archive, sample: int) -> Iterator[list[Row]]:
    """Rows of a fixed sample of every test set, of other pens and of what is no expression, set by set."""
    recognizer, name = Recognizer.load(run.path), run.settings.name
    for split in archive.test_splits:
        ids = at_random(archive.captions(split), sample, SEED)
        images = {id_: archive.image(split, id_) for id_ in ids}
        yield read(recognizer, name, split, images, archive.truth_of(split, ids))
    ink = archive.path.parent / "inkml" / f"{PENS_FROM}.zip"
    if PENS_FROM in archive.test_splits and ink.is_file():
        ids, draw = at_random(archive.captions(PENS_FROM), PENS, SEED), np.random.default_rng(SEED)
        drawn = strokes_of(ink, ids)
        pictures = {
            id_: in_another_pen(drawn[id_], archive.image(PENS_FROM, id_).shape[1], draw) for id_ in ids if id_ in drawn
        }
        yield read(recognizer, name, PENS_SET, pictures, archive.truth_of(PENS_FROM, pictures))
    pictures = {f"{kind} {n}": nonsense(kind, np.random.default_rng((SEED, n))) for kind in KINDS for n in range(EACH)}
    yield read(recognizer, name, NONSENSE, pictures, GroundTruth({}, None))


# ------------------------------------------------------------------------------------------------------ fitting


def fitted(rows: Sequence[Row], features: Sequence[str] = USED) -> Calibration:
    """The logistic regression of `right` on the evidence. Raises UserError for rows that are all right or all wrong."""
    values, right = matrix(rows, features), np.array([row["right"] for row in rows], float)
    if not 0 < right.sum() < len(right):
        raise UserError(f"of {len(rows)} held-out readings {int(right.sum())} are right: nothing can be fitted to them")
    mean, deviation = values.mean(0), np.where(values.std(0) > 0, values.std(0), 1)
    inputs, signs = np.column_stack([np.ones(len(rows)), (values - mean) / deviation]), 2 * right - 1

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        odds = signs * (inputs @ weights)
        penalty = RIDGE * np.concatenate([[0], weights[1:]])
        slope = -(signs / (1 + np.exp(odds))) @ inputs / len(signs)
        return float(np.logaddexp(0, -odds).mean() + weights @ penalty / 2), slope + penalty

    best = minimize(loss, np.zeros(inputs.shape[1]), jac=True, method="L-BFGS-B", options={"gtol": 1e-9}).x
    weights = best[1:] / deviation
    return Calibration(float(best[0] - weights @ mean), dict(zip(features, map(float, weights), strict=True)))


def matrix(rows: Sequence[Row], features: Sequence[str]) -> np.ndarray:
    """[rows, features]."""
    return np.array([[float(row[name]) for name in features] for row in rows])


def cross_validated(rows: Sequence[Row], features: Sequence[str]) -> np.ndarray:
    """Confidence of each row by a regression that was fitted without its writer's sheet."""
    sheets = sorted({sheet(row["id"]) for row in rows})
    fold = {name: i % FOLDS for i, name in enumerate(np.random.default_rng(SEED).permutation(sheets))}
    own = np.array([fold[sheet(row["id"])] for row in rows])
    result = np.zeros(len(rows))
    for number in sorted({*own}):
        model = fitted([row for row, at in zip(rows, own, strict=True) if at != number], features)
        for i in np.flatnonzero(own == number).tolist():
            result[i] = confidence_of(rows[i], model)
    return result


def confidence_of(row: Row, model: Calibration) -> float:
    return model(Evidence(**{name: float(row[name]) for name in FEATURES}))


# -------------------------------------------------------------------------------------------------------- files


def calibrate(
    results: Path, archive: Archive | None, trial: Path | None, runs: Sequence[Path], sample: int
) -> list[Row]:
    """Read what is asked for, fit to what was held out, and write the table and confidence.json. Returns all rows."""
    path = results / "confidence.csv"
    rows = stored(path) if path.exists() else []
    parts = [heldout(RunFolder(trial), archive)] if archive and trial else []
    for part in chain(parts, *(checked(RunFolder(run), archive, sample) for run in runs if archive)):
        again = {(row["network"], row["set"]) for row in part}
        rows = [row for row in rows if (row["network"], row["set"]) not in again] + part
        write_atomically(path, csv_text(COLUMNS, rows))  # reading takes minutes
    held = [row for row in rows if row["set"] == HELD_OUT_SET and row["read"]]
    if not held:
        raise UserError(f"{path}: it has no rows of {HELD_OUT_SET}; give a run of `trial` with --heldout")
    model = fitted(held)
    for row in rows:
        if row["read"]:
            row["confidence"] = round(confidence_of(row, model), 4)
    right = sum(row["right"] for row in held)
    contents = {
        "format": 1,
        "intercept": round(model.intercept, 6),
        "weights": {name: round(weight, 6) for name, weight in model.weights.items()},
        "fitted": {"network": held[0]["network"], "set": HELD_OUT_SET, "read": len(held), "right": right}
        | (made_by(RunFolder(trial)) if trial else recorded(held[0]["network"])),
    }
    write_atomically(path, csv_text(COLUMNS, rows))
    write_atomically(FITTED, json.dumps(contents, indent=1) + "\n")
    return rows


def made_by(run: RunFolder) -> Row:
    """Where the held-out readings come from: the command, its folder, named by all settings, and the revision."""
    epochs = run.settings.training.epochs
    command = f"hmerbench trial --recipe {run.recipe} --preset {run.preset} --epochs {epochs} --seed {run.seed}"
    return {"command": command, "run": run.path.resolve().name, "revision": run.environment.get("revision")}


def recorded(network: str) -> Row:
    """The same of an earlier fit to readings of this network."""
    earlier = read_plain(FITTED)["fitted"] if FITTED.exists() else {}
    return {key: earlier[key] for key in ORIGIN if key in earlier and earlier["network"] == network}


def stored(path: Path) -> list[Row]:
    """The rows of the table. Raises UserError for a damaged one."""
    try:
        return [row | {key: int(row[key]) for key in ("read", "right")} for row in read_table(path)]
    except (KeyError, ValueError):
        raise UserError(f"{path}: damaged or incomplete; restore it, or delete it and read again") from None


# ---------------------------------------------------------------------------------------------------- the document


def page(rows: Sequence[Row]) -> str:
    held = [row for row in rows if row["set"] == HELD_OUT_SET and row["read"]]
    trusted = []
    for network in dict.fromkeys(row["network"] for row in rows if row["set"] == NONSENSE):
        own = [row for row in rows if (row["network"], row["set"]) == (network, NONSENSE)]
        line = {"network": network}
        for kind in KINDS:
            alike = [row for row in own if row["id"].rpartition(" ")[0] == kind]
            sure = sum(bool(row["read"]) and float(row["confidence"]) >= DOUBTFUL for row in alike)
            line[kind] = f"{sure} of {len(alike)}"
        trusted.append(line)
    return from_template(
        "confidence.md",
        n=len(held),
        right=sum(row["right"] for row in held),
        network=held[0]["network"],
        limit=f"{DOUBTFUL:.0%}",
        before=f"{BEFORE_DOUBTFUL:.0%}",
        pens=PENS_FROM,
        table=markdown(summary(rows)),
        folds=FOLDS,
        kinds=markdown(trusted) if trusted else "(none read yet)",
        ablation=markdown(ablation(held)),
        used=", ".join(f"`{name}`" for name in USED),
    )


def log_loss(shares: np.ndarray, right: np.ndarray) -> float:
    """Mean of -log of the probability that was given to what is true."""
    given = np.where(right > 0, shares, 1 - shares).clip(1e-6)
    return float(-np.log(given).mean())


def brier(shares: np.ndarray, right: np.ndarray) -> float:
    return float(((shares - right) ** 2).mean())


def gap(shares: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: |mean confidence - share right| over bins of equally many readings."""
    parts = np.array_split(np.argsort(shares, kind="stable"), bins)
    return float(sum(abs(shares[p].mean() - right[p].mean()) * len(p) for p in parts if len(p)) / len(shares))


def gap_by_chance(shares: np.ndarray) -> float:
    """The mean gap of readings of which exactly the shares that are claimed are right: what few readings make of it."""
    draw = np.random.default_rng(SEED)
    return float(np.mean([gap(shares, (draw.random(len(shares)) < shares).astype(float)) for _ in range(200)]))


def summary(rows: Sequence[Row]) -> list[dict[str, str]]:
    """What came of the pictures of every network and set, before and after; the test sets are taken together, too."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for name in [*[YEARS] * row["set"].isdecimal(), row["set"]]:
            groups.setdefault((row["network"], name), []).append(row)
    return [{"network": network, "set": name} | _line(own, name != NONSENSE) for (network, name), own in groups.items()]


def _line(own: Sequence[Row], shows: bool) -> dict[str, str]:
    found = [row for row in own if row["read"]]
    right, count = np.array([row["right"] for row in found], float), sum(row["right"] for row in own)
    now = np.array([float(row["confidence"]) for row in found])
    line = {"n": str(len(own)), "refused": str(len(own) - len(found))}
    line["right"] = f"{100 * count / len(own):.0f} % ({interval_text(count, len(own))})" if shows else ""
    for when, key, limit in (("before", BEFORE, BEFORE_DOUBTFUL), ("now", "confidence", DOUBTFUL)):
        shares = np.array([float(row[key]) for row in found])
        sure = shares >= limit
        line |= {
            f"mean confidence, {when}": f"{100 * shares.mean():.0f} %",
            f"gap, {when}": f"{100 * gap(shares, right):.1f}",
            f"Brier, {when}": f"{brier(shares, right):.3f}",
            f"doubtful, {when}": f"{int((~sure).sum())} ({int(right[~sure].sum())} right)",
            f"not doubtful, {when}": f"{int(sure.sum())} ({int(right[sure].sum())} right)",
        }
    return line | {"gap by chance": f"{100 * gap_by_chance(now):.1f}"}


def ablation(rows: Sequence[Row]) -> list[dict[str, str]]:
    """How good more and less evidence is on the held-out expressions, cross-validated by writer's sheet."""
    more = [name for name in FEATURES if name not in USED]
    choices = {"`logp`, a temperature": ("logp",), "`logp`, `steps`": ("logp", "steps"), "**what is used**": USED}
    choices |= {f"and `{name}`": (*USED, name) for name in more} | {"and all of these": (*USED, *more)}
    right = np.array([row["right"] for row in rows], float)
    ways = {"probability per token, as it is": np.array([float(row[BEFORE]) for row in rows])}
    ways |= {name: cross_validated(rows, features) for name, features in choices.items()}
    return [
        {
            "evidence": name,
            "log loss": f"{log_loss(shares, right):.4f}",
            "Brier": f"{brier(shares, right):.4f}",
            "gap": f"{100 * gap(shares, right):.1f}",
        }
        for name, shares in ways.items()
    ]
