"""`hmerbench calibrate`: what makes a confidence of the evidence of a reading is fitted on held-out training
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
import pandas as pd
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
from hmerbench.benchmarks.report.documents import from_template, markdown, undamaged
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
    return as_rows(network, name, {id_: (each.latex, each.evidence) for id_, each in best.items()}, truth, pictures)


def as_rows(
    network: str, name: str, found: Mapping[str, tuple[str, Evidence]], truth: GroundTruth, ids: Iterable[str]
) -> list[Row]:
    """Rows of expressions, of which some were `found`, LaTeX and evidence; what is not in `truth` cannot be right."""
    known = {id_: found[id_][0] if id_ in found else "" for id_ in truth.symlg}
    right = evaluate(known, truth, NO_FIELDS).right if known else set()
    rows = []
    for id_ in ids:
        row: Row = {"network": network, "set": name, "id": id_, "read": int(id_ in found), "right": int(id_ in right)}
        if id_ in found:
            values = asdict(found[id_][1]) | {BEFORE: found[id_][1].per_token}
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
    found, numbers = dict[str, tuple[str, Evidence]](), dict[str, int]()  # which stand for words
    for row in read_plain(path):
        if any("spread" not in each for each in row["nbest"]):
            raise UserError(f"{path}: an earlier version read them; delete the file, then run the same trial again")
        nbest = [
            Hypothesis(
                tuple(numbers.setdefault(word, len(numbers)) for word in each["tokens"].split()),
                **{key: each[key] for key in SCORES},
            )
            for each in row["nbest"]
        ]
        if best := next(evidence(nbest, alpha), None):
            found[row["id"]] = row["tokens"], best[1]
    _, samples = hold_out(archive.samples("train"), HELD_OUT, HELD_OUT_SEED)
    ids = [sample.id for sample in samples]
    name = f"trial of {run.settings.name}"
    return as_rows(name, HELD_OUT_SET, found, archive.truth_of("train", ids), ids)


def checked(run: RunFolder, archive: Archive, sample: int) -> Iterator[list[Row]]:
    """Rows of a fixed sample of every test set, of other pens and of what is no expression, set by set."""
    recognizer, name = Recognizer.load(run.path), run.settings.name
    for split in archive.tests:
        ids = at_random(archive.captions(split), sample, SEED)
        images = {id_: archive.image(split, id_) for id_ in ids}
        yield read(recognizer, name, split, images, archive.truth_of(split, ids))
    ink = archive.path.parent / "inkml" / f"{PENS_FROM}.zip"
    if PENS_FROM in archive.tests and ink.is_file():
        ids, draw = at_random(archive.captions(PENS_FROM), PENS, SEED), np.random.default_rng(SEED)
        drawn = strokes_of(ink, ids)
        pictures = {
            id_: in_another_pen(drawn[id_], archive.image(PENS_FROM, id_).shape[1], draw) for id_ in ids if id_ in drawn
        }
        yield read(recognizer, name, PENS_SET, pictures, archive.truth_of(PENS_FROM, pictures))
    pictures = {f"{kind} {n}": nonsense(kind, np.random.default_rng((SEED, n))) for kind in KINDS for n in range(EACH)}
    yield read(recognizer, name, NONSENSE, pictures, GroundTruth({}, None))


# ------------------------------------------------------------------------------------------------------ fitting


def as_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows, with numbers as such; what was not read has no evidence and no confidence."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.assign(**{name: pd.to_numeric(frame[name], errors="coerce") for name in COLUMNS[3:]})


def held_out(rows: Sequence[Row]) -> pd.DataFrame:
    """What was read of the held-out expressions."""
    return as_frame([row for row in rows if row["set"] == HELD_OUT_SET and row["read"]])


def fitted(rows: pd.DataFrame, features: Sequence[str] = USED) -> Calibration:
    """The logistic regression of `right` on the evidence. Raises UserError for rows that are all right or all wrong."""
    values, right = rows[list(features)].to_numpy(float), rows["right"].to_numpy(float)
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


def cross_validated(rows: pd.DataFrame, features: Sequence[str]) -> np.ndarray:
    """Confidence of each row by a regression that was fitted without its writer's sheet."""
    sheets = rows["id"].map(sheet)
    fold = {name: i % FOLDS for i, name in enumerate(np.random.default_rng(SEED).permutation(sorted({*sheets})))}
    own, result = np.array([fold[name] for name in sheets]), np.zeros(len(rows))
    for number in sorted({*own}):
        result[own == number] = confidences(rows.loc[own == number], fitted(rows.loc[own != number], features))
    return result


def confidences(rows: pd.DataFrame, model: Calibration) -> list[float]:
    return [model(Evidence(**dict(zip(FEATURES, values, strict=True)))) for values in rows[[*FEATURES]].to_numpy(float)]


# -------------------------------------------------------------------------------------------------------- files


def calibrate(
    results: Path, archive: Archive | None, trial: Path | None, runs: Sequence[Path], sample: int
) -> list[Row]:
    """Read what is asked for, fit to what was held out, and write the table and confidence.json. Returns all rows."""
    path = results / "confidence.csv"
    rows = stored(path) if path.exists() else []
    parts = [heldout(RunFolder(trial), archive)] if archive and trial else []
    rows = [row for row in rows if not parts or row["set"] != HELD_OUT_SET]  # confidence is fitted to one trial
    for part in chain(parts, *(checked(RunFolder(run), archive, sample) for run in runs if archive)):
        again = {(row["network"], row["set"]) for row in part}
        rows = [row for row in rows if (row["network"], row["set"]) not in again] + part
        write_atomically(path, csv_text(COLUMNS, rows))  # reading takes minutes
    held = held_out(rows)
    if held.empty:
        raise UserError(f"{path}: it has no rows of {HELD_OUT_SET}; give a run of `trial` with --heldout")
    model, found = fitted(held), [row for row in rows if row["read"]]
    for row, confidence in zip(found, confidences(as_frame(found), model), strict=True):
        row["confidence"] = round(confidence, 4)
    network, right = held["network"].iloc[0], sum(held["right"].tolist())
    contents = {
        "format": 1,
        "intercept": round(model.intercept, 6),
        "weights": {name: round(weight, 6) for name, weight in model.weights.items()},
        "fitted": {"network": network, "set": HELD_OUT_SET, "read": len(held), "right": right}
        | (made_by(RunFolder(trial)) if trial else recorded(network)),
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
    with undamaged(path, fix="delete it and read again"):
        return [row | {key: int(row[key]) for key in ("read", "right")} for row in read_table(path)]


# ---------------------------------------------------------------------------------------------------- the document


def page(rows: Sequence[Row]) -> str:
    held, found = held_out(rows), as_frame(rows)
    shown = found.query("set == @NONSENSE").assign(
        kind=lambda rows: rows["id"].str.rpartition(" ")[0], sure=lambda rows: rows["confidence"] >= DOUBTFUL
    )
    trusted = shown.pivot_table("sure", "network", "kind", lambda sure: f"{sum(sure)} of {len(sure)}", sort=False)
    return from_template(
        "confidence.md",
        n=len(held),
        right=sum(held["right"]),
        network=held["network"].iloc[0],
        limit=f"{DOUBTFUL:.0%}",
        before=f"{BEFORE_DOUBTFUL:.0%}",
        pens=PENS_FROM,
        table=markdown(summary(found)),
        folds=FOLDS,
        kinds=markdown(trusted.reset_index()) if len(trusted) else "(none read yet)",
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


def summary(rows: pd.DataFrame) -> list[dict[str, str]]:
    """What came of the pictures of every network and set of which it read any, before and after; the test sets are
    taken together, too."""
    together = rows.loc[rows["set"].str.isdecimal()].assign(set=YEARS)
    groups = pd.concat([together, rows]).sort_index(kind="stable").groupby(["network", "set"], sort=False)
    return [_line(own) for _, own in groups if sum(own["read"])]


def _line(own: pd.DataFrame) -> dict[str, str]:
    """The line of a network and set."""
    network, name = own[["network", "set"]].iloc[0]
    found, count = own.query("read == 1"), sum(own["right"])
    right, rate = found["right"].to_numpy(float), f"{100 * count / len(own):.0f} %"
    line = {"network": network, "set": name, "n": str(len(own)), "refused": str(len(own) - len(found))}
    line["right"] = f"{rate} ({interval_text(count, len(own))})" if name != NONSENSE else ""
    for when, key, limit in (("before", BEFORE, BEFORE_DOUBTFUL), ("now", "confidence", DOUBTFUL)):
        shares = found[key].to_numpy()
        sure = shares >= limit
        line |= {
            f"mean confidence, {when}": f"{100 * shares.mean():.0f} %",
            f"gap, {when}": f"{100 * gap(shares, right):.1f}",
            f"Brier, {when}": f"{brier(shares, right):.3f}",
            f"doubtful, {when}": f"{int((~sure).sum())} ({int(right[~sure].sum())} right)",
            f"not doubtful, {when}": f"{int(sure.sum())} ({int(right[sure].sum())} right)",
        }
    return line | {"gap by chance": f"{100 * gap_by_chance(found['confidence'].to_numpy()):.1f}"}


def ablation(rows: pd.DataFrame) -> list[dict[str, str]]:
    """How good more and less evidence is on the held-out expressions, cross-validated by writer's sheet."""
    more = [name for name in FEATURES if name not in USED]
    choices = {"`logp`, a temperature": ("logp",), "`logp`, `steps`": ("logp", "steps"), "**what is used**": USED}
    choices |= {f"and `{name}`": (*USED, name) for name in more} | {"and all of these": (*USED, *more)}
    right = rows["right"].to_numpy(float)
    ways = {"probability per token, as it is": rows[BEFORE].to_numpy()}
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
