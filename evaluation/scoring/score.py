"""A score from files of predictions and ground truth, by the LgEval-compatible scripts or in process.

Its signature says in one line what the number measures: `ExpRate|set:crohme2014|n:N|metric:symlg|conv:1.4|…|v:2`, in
the manner of sacreBLEU's. Numbers with different signatures must not be compared. Those with equal ones may still
differ in what no signature names: a search's precision, batch size, longest hypothesis and largest image.
"""

import hashlib
import tempfile
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoring.inputs import GroundTruth, matched, parse_captions, read_captions
from hmerbench.evaluation.scoring.metrics import Expression, Score, score_of
from hmerbench.evaluation.scoring.notes import left_out, notes_on
from hmerbench.evaluation.scoring.outcome import in_process, in_workdir, neutral_exact, own_scripts, scripts
from hmerbench.evaluation.scoring.wrappers import Predictions
from hmerbench.evaluation.symlg import PAPER, Rules
from hmerbench.evaluation.symlg.formula import tokens_of

# Raised when a verdict on a system scored so far changes under the same fields. 1.0 named no edition: it followed the
# paper's, but read \text, matrices, $ and lone brackets as arguments differently. Learning a command that used to be
# refused does not raise it, nor did, within 2, blanks between column letters, what follows \&, and that a truth made
# from captions follows the edition (as in no system).
VERSION = "2"
NO_FIELDS = {"set": "unknown", "search": "unknown", "select": "unknown"}


@dataclass(frozen=True)
class Evaluation:
    """A score, its expressions, and what was compared."""

    score: Score
    expressions: list[Expression]
    notes: list[str]  # what has an effect on the score that its user may not know of
    predictions: Predictions
    truth: GroundTruth

    @property
    def right(self) -> set[str]:
        """The ids of the expressions without error."""
        return {row.id for row in self.expressions if row.exact}


def evaluate(
    predictions: Path | Mapping[str, str],
    ground_truth: str | GroundTruth,
    fields: Mapping[str, str] = NO_FIELDS,
    workdir: Path | None = None,
    captions: Mapping[str, list[str]] | None = None,
    rules: Rules = PAPER,
    raw: bool = False,
) -> Evaluation:
    """Score predictions (in a form of `read_predictions`, or LaTeX by id) against `ARCHIVE.zip:SPLIT`,
    `FOLDER:SPLIT`, a folder of .lg, or a GroundTruth, expression by expression. Raises InputError.

    `raw`: the predictions are raw LaTeX, to be split into tokens first. `fields` are the signature's set, search and
    select. Without `workdir` our own code scores in this process; with it, the scripts run there, with the same result,
    and their files are kept. The scripts of LGEVAL_BIN always run, without `workdir` in a temporary folder.
    """
    texts, truth, stray = matched(predictions, ground_truth, raw, rules)
    own = own_scripts()
    if captions is not None:
        if truth.captions is not None:
            name = ground_truth if isinstance(ground_truth, str) else "the ground truth"
            raise InputError(f"{name}: has captions of its own; leave out --captions, which is for a folder of .lg")
        if absent := [key for key in truth.symlg if key not in captions]:
            named = f"{len(absent)} of {len(truth.symlg)} expressions ({absent[0]}{', ...' * (len(absent) > 1)})"
            raise InputError(f"the captions given (--captions) lack those of {named}; add their lines")
        truth = truth._replace(captions={key: captions[key] for key in truth.symlg})
    if not own and rules != PAPER:
        raise InputError(f"LGEVAL_BIN={scripts()}: these scripts follow their own rules; leave out reading and edition")
    if workdir and rules.neutral:
        raise InputError(f"{workdir}: the scripts' files have limits as they are written; leave out workdir or limits")
    named = {**NO_FIELDS, **fields, **({"tok": "split"} if raw else {})}
    named |= {"wrap": "removed"} if texts.unofficial else {}
    signature = signature_of(len(truth.symlg), named, rules if own else None)
    graphs = truth.graphs()
    if workdir is None and own:
        found = in_process(texts, graphs, rules)
    else:
        sources = [Path(given) for given in (predictions, ground_truth) if isinstance(given, str | Path)]
        with nullcontext(workdir) if workdir else tempfile.TemporaryDirectory() as folder:
            found = in_workdir(texts, truth.symlg, Path(folder), sources, rules)
    rows = []
    for key in truth.symlg:
        text, caption = texts.get(key), (truth.captions or {}).get(key)
        status = "missing" if text is None else "unconverted" if key in found.reasons else "converted"
        tokens = None if text is None else tokens_of(text)
        rows.append(Expression.compared(key, found.metrics[key], status, tokens, caption))
    notes = [*notes_on(texts, truth, graphs, rows, found, rules if own else None), *left_out(stray)]
    known = own and not rules.neutral
    neutral = neutral_exact(texts, graphs, {row.id for row in rows if row.exact}, rules) if known else None
    return Evaluation(score_of(rows, signature, neutral), rows, notes, texts, truth)


# --- signatures ---------------------------------------------------------------------------------------------------


def signature_of(n: int, named: Mapping[str, str], rules: Rules | None) -> str:
    """The signature of a score over n expressions. `named` are set, search, select, tok where raw LaTeX was split into
    tokens, and wrap where more was removed around formulas than the official chain removes; `rules` is None for the
    scripts of LGEVAL_BIN, whose rules are unknown. Raises InputError for text that a signature cannot hold."""
    if odd := [text for text in named.values() if "|" in text or not text.isprintable()]:
        raise InputError(f"{odd[0]!r}: cannot be part of a signature; leave out | and line breaks")
    scorer = rules.versions if rules else {"scorer": "LGEVAL_BIN"}
    fields = {"set": named["set"], "n": str(n), "metric": "symlg", **scorer, "search": named["search"]}
    fields |= {key: named[key] for key in ("tok", "wrap") if key in named}
    return _signed(fields | {"select": named["select"]})


def _signed(fields: Mapping[str, str]) -> str:
    return "|".join(["ExpRate", *(f"{key}:{text}" for key, text in fields.items()), f"v:{VERSION}"])


def fields_of(signature: str) -> dict[str, str]:
    """The fields of a signature. Raises InputError."""
    name, *parts = signature.split("|")
    fields = dict(part.split(":", 1) for part in parts if ":" in part)
    if name != "ExpRate" or len(fields) < len(parts) or "v" not in fields:
        raise InputError(f"{signature[:80]!r}: this is not the signature of an expression rate")
    return fields


# --- what was not trained on --------------------------------------------------------------------------------------


class Training(NamedTuple):
    """Captions that were trained on, and their name in a signature, the beginning of the MD5 of the file: scores with
    the same leave out the same. Writers copy the same formulas, so that some of a test set's captions occur in
    training, written by another hand."""

    captions: Collection[tuple[str, ...]]
    name: str


def read_training(spec: str) -> Training:
    """The captions of `ARCHIVE.zip:SPLIT`, `FOLDER:SPLIT` or a caption.txt. Raises InputError."""
    text, where = read_captions(spec)
    captions = {tuple(tokens) for tokens in parse_captions(text, where).values()}
    return Training(captions, hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8])


def unseen(result: Evaluation, training: Training) -> tuple[Score | None, int]:
    """The score of the expressions whose captions are not in `training`, which its signature says (`unseen`); None if
    there are none. And how many are left out. The truth must have captions."""
    captions = result.truth.captions or {}
    rows = [row for row in result.expressions if tuple(captions[row.id]) not in training.captions]
    left_out = len(result.expressions) - len(rows)
    fields = fields_of(result.score.signature) | {"n": str(len(rows)), "unseen": training.name}
    del fields["v"]
    return score_of(rows, _signed(fields)) if rows else None, left_out


def told(score: Score | None, left_out: int) -> str:
    """The second line of a score."""
    if score is None:
        return f"all {left_out} captions were trained on: no unseen expression is left"
    return f"{score}, without {left_out} whose captions were trained on"
