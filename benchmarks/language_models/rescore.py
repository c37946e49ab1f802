"""`benchmarks rescore`: what a language model is worth in recognition, from the n-best lists of recognized sets.

Weight and reward for length are chosen on held-out training expressions, which neither the recognizer of a trial nor
the language model has seen (`captions` leaves the same ones out), before the list of a test set is read. They then
hold for all runs and sets. The oracle takes the hypothesis with the fewest errors: no ranking can win more.

Names carry shapes: N images, K hypotheses of a list, which is padded with scores of -inf.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.progress import track

from hmerbench.benchmarks.config import Language, Search
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import HELD_OUT_SET
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import refuse_pipe, write_atomically
from hmerbench.benchmarks.printing import err_console, show
from hmerbench.benchmarks.recognition.rescoring import Lines, total
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.workspace import workspace
from hmerbench.evaluation import lines as lines_of
from hmerbench.evaluation.lgeval import metrics
from hmerbench.evaluation.lgeval.label_graph import Graph
from hmerbench.evaluation.scoring.inputs import GroundTruth
from hmerbench.evaluation.scoring.run_scripts import converted
from hmerbench.evaluation.scoring.stats import compare_paired
from hmerbench.evaluation.scoring.tokens import prediction_file
from hmerbench.evaluation.symlg import SymLG
from hmerbench.models.strict_json import parse_json
from hmerbench.models.vocab import Vocabulary

WEIGHTS = tuple(step / 20 for step in range(1, 21))  # without 0, which would only say that the model is of no use
LENGTHS = tuple(step / 200 for step in range(-20, 21))
WAYS = {"length": ((0.0,), LENGTHS), "language": (WEIGHTS, (0.0,)), "both": (WEIGHTS, LENGTHS)}
TITLE = "What a language model is worth in recognition: lists of hypotheses ranked without and with it"
NOTE = (
    "A hypothesis of n tokens gets score + weight × log p / (n + 1)^alpha + length × n. Weight (0.05 to 1) and length "
    "are those with the most exact expressions on the held-out training expressions (`heldout`), and then hold "
    "for all runs and sets. `exact`: right without the language model; `gained`, `lost`: right only with it, only "
    "without it; `points`: the difference with its 95 % interval (Newcombe); `p`: exact McNemar test; `oracle`: "
    "lists with a right hypothesis; `prefers`: of those whose right hypothesis is not first, how many whose right "
    "one the language model gives a higher probability than the first."
)

Row = dict[str, Any]


class Listed(NamedTuple):
    """A hypothesis of a list."""

    tokens: tuple[str, ...]
    score: float


@dataclass(frozen=True)
class Judged:
    """The lists of a set, and which of their hypotheses are right."""

    score_NK: np.ndarray
    log_p_NK: np.ndarray
    tokens_NK: np.ndarray
    right_NK: np.ndarray  # symLG without an error
    alpha: float

    def exact(self, language: Language) -> np.ndarray:
        """Whether the hypothesis that ranks first with this share of the language model is right [N]."""
        ranked_NK = total(self.score_NK, self.log_p_NK, self.tokens_NK, self.alpha, language)
        return np.take_along_axis(self.right_NK, ranked_NK.argmax(1, keepdims=True), 1)[:, 0]

    @property
    def attainable(self) -> int:
        """How many lists hold a right hypothesis."""
        return int(self.right_NK.any(1).sum())

    @property
    def preferred(self) -> tuple[int, int]:
        """Of how many lists whose right hypothesis is not first the language model prefers a right one, and of how many
        there are."""
        first_N1 = self.score_NK.argmax(1, keepdims=True)
        open_N = self.right_NK.any(1) & ~self.exact(Language())
        better_NK = self.right_NK & (self.log_p_NK > np.take_along_axis(self.log_p_NK, first_N1, 1))
        return int((better_NK.any(1) & open_N).sum()), int(open_N.sum())

    def best(self, weights: Sequence[float], lengths: Sequence[float]) -> Language:
        """The settings with the most exact expressions; of equally good ones, the smallest weight and length."""
        settings = sorted(product(weights, lengths), key=lambda pair: (pair[0], abs(pair[1])))
        shares = [Language(weight=weight, length=length) for weight, length in settings]
        return max(shares, key=lambda share: int(self.exact(share).sum()))


def rescore(archive: Archive, trial: Path, folders: Sequence[Path], language: Path, results: Path) -> list[Row]:
    """Choose on the list of a trial, judge all lists of test sets in `folders`; write rescoring.{csv,md}.

    Raises UserError for a folder without lists, with damaged ones or of another `search.alpha` than the trial's, and
    for a language model of other words.
    """
    lines = Lines(language, Vocabulary())
    held = _read(RunFolder(trial), HELD_OUT_SET, archive, lines)
    chosen = {way: held.best(*grid) for way, grid in WAYS.items()}
    rows = _rows(RunFolder(trial), HELD_OUT_SET, [held], chosen)
    for folder in folders:
        run, sets = RunFolder(folder), list[Judged]()
        if (alpha := run.settings.search.alpha) != held.alpha:  # weight and length hold for scores on one scale alone
            raise UserError(
                f"{folder}: its search.alpha is {alpha:g}, that of {trial} {held.alpha:g}; give a trial like it"
            )
        splits = [split for split in run.sets("predictions/*.jsonl") if split in archive.test_splits]
        if not splits:
            raise UserError(f"{folder}: it has no n-best lists of test sets; `hmerbench predict` writes them")
        for split in splits:
            sets.append(_read(run, split, archive, lines))
            rows += _rows(run, split, sets[-1:], chosen)
        if len(sets) > 1:
            rows += _rows(run, "all", sets, chosen)
    write(rows, workspace(archive, results))  # only what is CROHME's replaces the committed table
    shown = ("run", "set", "n", "exact", "with", "gained", "lost", "points", "p", "oracle")
    show(TITLE, [{key: row[key] for key in shown} for row in rows])
    return rows


def read_lists(path: Path) -> dict[str, list[Listed]]:
    """The n-best lists by id of predictions/<set>.jsonl. Raises UserError for a missing or damaged one."""
    refuse_pipe(path)
    if not path.is_file():
        raise UserError(f"{path}: there are no such n-best lists; `hmerbench predict` writes them")
    try:
        rows = lines_of(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"{path}: it is not UTF-8; recognize this set again") from None
    lists: dict[str, list[Listed]] = {}
    for number, text in enumerate(rows, start=1):
        try:
            row = parse_json(text)
            lists[row["id"]] = [Listed(tuple(found["tokens"].split()), float(found["score"])) for found in row["nbest"]]
            if not np.isfinite([found.score for found in lists[row["id"]]]).all():
                raise ValueError
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            fault = f"{path}, line {number}: not a list of hypotheses with tokens and a finite score"
            raise UserError(f"{fault}; recognize this set again") from None
    return lists


def _read(run: RunFolder, split: str, archive: Archive, lines: Lines) -> Judged:
    if run.settings.search.language.weights:
        raise UserError(f"{run.path}: a language model has ranked its lists already; give a run without one")
    path = run.path / f"predictions/{split}.jsonl"
    if split == HELD_OUT_SET and not path.is_file():
        raise UserError(f"{path}: there are no such n-best lists; run this trial again without --read")
    lists = read_lists(path)
    truth = archive.ground_truth("train" if split == HELD_OUT_SET else split)
    if split == HELD_OUT_SET:
        truth = {id_: truth[id_] for id_ in lists if id_ in truth}
    if not truth or not truth.keys() & lists.keys():
        raise UserError(f"{run.path}: {archive.path} has no expression of its lists of {split}; give their archive")
    return judged(lists, GroundTruth(truth, None).graphs(), lines, run.settings.search, f"{_name(run, split)}, {split}")


def judged(
    lists: Mapping[str, list[Listed]], truth: Mapping[str, Graph], lines: Lines, search: Search, what: str = ""
) -> Judged:
    """Convert and compare every hypothesis, but those that may not be predicted (`search.convertible`).

    An expression without any is wrong.
    """
    rows = []
    for id_, graph in track(truth.items(), f"  judging {what}", console=err_console, transient=True):
        listed = sorted(lists.get(id_, ()), key=lambda found: found.score, reverse=True)  # stable
        graphs = {found: converted(prediction_file(id_, found)) for found in {found.tokens for found in listed}}
        right = {found: made is not None and _right(made, graph) for found, made in graphs.items()}
        listed = [found for found in listed if graphs[found.tokens] or not search.convertible]
        log_p = lines([found.tokens for found in listed])
        columns = [(f.score, value, len(f.tokens), right[f.tokens]) for f, value in zip(listed, log_p, strict=True)]
        rows.append(columns or [(0.0, 0.0, 0, False)])
    table_NK4 = np.full((len(rows), max(map(len, rows)), 4), (-np.inf, 0, 0, 0))
    for place, row in zip(table_NK4, rows, strict=True):
        place[: len(row)] = row
    score_NK, log_p_NK, tokens_NK, right_NK = np.moveaxis(table_NK4, 2, 0)
    return Judged(score_NK, log_p_NK, tokens_NK, right_NK.astype(bool), search.alpha)


def _right(prediction: SymLG, truth: Graph) -> bool:
    """Whether D_B is 0, which it never is with other nodes."""
    return prediction.nodes.keys() == truth.nodes.keys() and not metrics.compare(prediction, truth).metrics["D_B"]


def _name(run: RunFolder, split: str) -> str:
    return f"{'trial of ' * (split == HELD_OUT_SET)}{run.recipe}/{run.preset}-seed{run.seed}"


def _rows(run: RunFolder, split: str, sets: Sequence[Judged], chosen: Mapping[str, Language]) -> list[Row]:
    """A row for each way to rank the hypotheses of one set, or of several together."""

    def wrong(share: Language) -> list[int]:
        return [int(not exact) for judged in sets for exact in judged.exact(share)]

    plain = wrong(Language())
    oracle = sum(judged.attainable for judged in sets)
    prefers, of = np.sum([judged.preferred for judged in sets], axis=0)
    rows = []
    for way, share in chosen.items():
        found = compare_paired(wrong(share), plain)
        row: Row = {"run": _name(run, split), "set": split, "n": found.n, "exact": found.exact_b, "with": way}
        row |= {"weight": share.weight, "length": share.length, "gained": found.only_a, "lost": found.only_b}
        low, high = found.interval
        row |= {"points": round(found.difference, 2), "low": round(low, 2), "high": round(high, 2)}
        rows.append(row | {"p": round(found.mcnemar_p, 4), "oracle": oracle, "prefers": f"{prefers}/{of}"})
    return rows


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write the table as CSV and Markdown."""
    table = pd.DataFrame(rows)
    write_atomically(folder / "rescoring.csv", table.to_csv(index=False, lineterminator="\n"))
    write_atomically(folder / "rescoring.md", f"**{TITLE}**\n\n{table.to_markdown(index=False)}\n\n{NOTE}\n")
    print(folder / "rescoring.md")
