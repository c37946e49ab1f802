"""A score from files of predictions and ground truth, by the LgEval-compatible scripts or in process."""

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import dataclass_transform

from hmerbench.evaluation import InputError
from hmerbench.evaluation.lgeval.label_graph import LabelGraph
from hmerbench.evaluation.scoring.convention import other_convention
from hmerbench.evaluation.scoring.inputs import GroundTruth, as_tokens, matched
from hmerbench.evaluation.scoring.interval import percent, proportion_interval
from hmerbench.evaluation.scoring.lengths import BUCKETS, Bucket, by_bucket
from hmerbench.evaluation.scoring.metrics import METRICS, WITHIN, Expression, Metric, counts_of
from hmerbench.evaluation.scoring.run_scripts import (
    FOLDERS,
    in_process,
    neutral_exact,
    own_scripts,
    reasons,
    run_scripts,
    scripts,
)
from hmerbench.evaluation.scoring.signature import signature_of
from hmerbench.evaluation.scoring.tokens import formula_of, has_text, tokenize, tokens_of, untokenized
from hmerbench.evaluation.scoring.wrappers import Predictions
from hmerbench.evaluation.symlg import PAPER, Rules

SHOWN = 5  # of the reasons why predictions do not convert
MARGIN = 30  # characters shown of the beginning or end of a prediction
NO_FORMULA = ("empty prediction", "empty expression", "no $...$ formula in the file")
_PLACE = re.compile(r" at token \d+$|^\d+ (?=tokens|characters|symbols)")  # what makes a reason one prediction's own

NO_FIELDS = {"set": "unknown", "search": "unknown", "select": "unknown"}


Class = TypeVar("Class")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _with_metrics(cls: type[Class]) -> type[Class]:
    """A dataclass with the counts and rates of all metrics, in the order of score files."""
    fields: dict[str, Any] = {"n": int}
    fields |= {metric.count: int for metric in METRICS if metric.always}
    fields |= {metric.rate: float for metric in METRICS if metric.always}
    fields["by_length"] = cls.__annotations__["by_length"]
    for metric in METRICS:
        if not metric.always:
            fields |= {metric.count: int | None, metric.rate: float | None}
            setattr(cls, metric.count, None)
            setattr(cls, metric.rate, None)
    cls.__annotations__ = fields | {name: of for name, of in cls.__annotations__.items() if name not in fields}
    return dataclass(frozen=True, kw_only=True)(cls)


@_with_metrics
class Score:
    """Counts over the n expressions of a ground truth, and rates in percent, of METRICS. Length and token fields are
    None without captions. `missing`: expressions without a prediction; `unconverted`: predictions that do
    not convert. Both count as empty graphs. `ci95`: Wilson interval of the expression rate. `neutral`: how many are
    exact if it makes no difference whether \\limits is written; None if `exact` itself says that, or for other
    scripts."""

    n: int
    exact: int
    exprate: float
    by_length: list[Bucket] | None
    ci95: tuple[float, float]
    signature: str
    missing: int
    unconverted: int
    neutral: int | None = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the counts and rates of all metrics

    def __post_init__(self) -> None:
        counts = [getattr(self, metric.count) for metric in WITHIN]
        if min(counts) < 0 or counts != sorted(counts) or not counts[-1] <= self.n > 0:
            raise ValueError(f"{', '.join(metric.count for metric in WITHIN)} and n contradict each other")
        if not self.exact <= (self.exact if self.neutral is None else self.neutral) <= self.n:
            raise ValueError("exact, neutral and n contradict each other")
        if self.by_length is not None and [row.bucket for row in self.by_length] != list(BUCKETS):
            raise ValueError("by_length has other buckets")

    def printed(self, metric: Metric) -> str:
        """The rate of a metric with two decimals; a dash if it is not known."""
        rate = getattr(self, metric.rate)
        return "–" if rate is None else f"{rate:.2f}"

    def __str__(self) -> str:
        low, high = proportion_interval(self.exact, self.n)
        return f"{self.signature} = {self.exprate:.2f} ({100 * low:.1f}–{100 * high:.1f})"


@dataclass(frozen=True)
class Evaluation:
    """A score with its expressions."""

    score: Score
    expressions: list[Expression]
    notes: list[str]  # what has an effect on the score that its user may not know of


def evaluate(
    predictions: Path | Mapping[str, str],
    ground_truth: str | GroundTruth,
    fields: dict[str, str],
    workdir: Path | None = None,
    captions: dict[str, list[str]] | None = None,
    rules: Rules = PAPER,
    split: bool = False,
) -> Evaluation:
    """Score predictions (in a form of `read_predictions`, or LaTeX by id) against `ARCHIVE.zip:SPLIT`,
    `FOLDER:SPLIT`, a folder of .lg, or a GroundTruth, expression by expression. Raises InputError.

    `split`: the predictions are raw LaTeX, to be split into tokens first. `fields` are the signature's set, search
    and select. Without `workdir` our own code scores in this process; with it, the
    scripts run there, with the same result, and their files are kept. The scripts of LGEVAL_BIN always run, without
    `workdir` in a temporary folder.
    """
    texts, truth, stray = matched(predictions, ground_truth, split)
    if captions is not None:
        if absent := [key for key in truth.symlg if key not in captions]:
            named = f"{len(absent)} of {len(truth.symlg)} expressions ({absent[0]}{', ...' * (len(absent) > 1)})"
            raise InputError(f"the captions given (--captions) lack those of {named}; add their lines")
        truth = truth._replace(captions={key: captions[key] for key in truth.symlg})
    if not own_scripts() and rules != PAPER:
        raise InputError(f"LGEVAL_BIN={scripts()}: these scripts follow their own rules; leave out reading and edition")
    if workdir and rules.neutral:
        raise InputError(f"{workdir}: the scripts' files have limits as they are written; leave out workdir or limits")
    named = fields | ({"tok": "split"} if split else {}) | ({"wrap": "removed"} if texts.unofficial else {})
    signature = signature_of(len(truth.symlg), named, rules if own_scripts() else None)
    if workdir is None and not own_scripts():
        with tempfile.TemporaryDirectory() as folder:
            return evaluate(predictions, ground_truth, fields, Path(folder), captions, rules, split)
    graphs = truth.graphs()
    if workdir is None:
        counts, metrics, converted = in_process(texts, graphs, rules)
    else:
        sources = [Path(given) for given in (predictions, ground_truth) if isinstance(given, str | Path)]
        _refuse_to_replace(workdir, sources)
        # apart: another scoring in the same workdir must not mix its files with these
        with tempfile.TemporaryDirectory(prefix=".scoring", dir=workdir) as scratch:
            counts, metrics = run_scripts(texts, truth.symlg, Path(scratch), rules)
            converted = {key for key in texts if Path(scratch, "pred_symlg", f"{key}.lg").exists()}
            for name in FOLDERS:  # the results last: by them a workdir is known, also after a kill
                if (workdir / name).exists():
                    (workdir / name).rename(Path(scratch, f"old_{name}"))
                Path(scratch, name).rename(workdir / name)
    rows = []
    for key in truth.symlg:
        text, values, caption = texts.get(key), metrics[key], (truth.captions or {}).get(key)
        status = "missing" if text is None else "converted" if key in converted else "unconverted"
        tokens = None if text is None else tokens_of(text)
        rows.append(Expression.compared(key, values, status, tokens, caption))
    notes = ["the ground truth has no symLG; it was made from the captions"] if truth.made else []
    why = reasons({row.id: texts[row.id] for row in rows if row.status == "unconverted"}, rules)
    notes += _notes(texts, graphs, counts["exact"], rules, why) if own_scripts() else unconverted(why, len(texts))
    if truth.captions:
        wrong = {row.id: texts[row.id] for row in rows if row.status == "converted" and not row.exact}
        notes += _around(wrong, truth.captions)
    known = own_scripts() and not rules.neutral
    neutral = neutral_exact(texts, graphs, {row.id for row in rows if row.exact}, rules) if known else None
    return Evaluation(score_of(rows, signature, neutral), rows, notes + left_out(stray))


def left_out(stray: int, missing: int = 0, n: int = 0) -> list[str]:
    """Notes on predictions without ground truth, and on those of n expressions without a prediction."""
    notes = [f"{stray} predictions have no ground truth and are left out"] if stray else []
    return notes + ([f"{missing} of {n} expressions have no prediction"] if missing else [])


def unconverted(why: dict[str, str], n: int) -> list[str]:
    """A note on those of n predictions that do not convert, with the most frequent reasons; `why` has each one's."""
    counts = Counter(_PLACE.sub("", reason) for reason in why.values())
    shown = [f"{reason} ({count})" for reason, count in counts.most_common(SHOWN)]
    if (others := len(counts) - SHOWN) > 0:
        shown.append(f"{others} other reason{'s' * (others > 1)}")
    return [f"{len(why)} of {n} predictions do not convert: {', '.join(shown)}"] if why else []


def _notes(
    texts: Predictions, graphs: dict[str, LabelGraph], exact: int, rules: Rules, why: dict[str, str]
) -> list[str]:
    latex = {key: formula_of(text) for key, text in texts.items()}
    notes = [note for note in (other_convention(texts, graphs, rules), texts.note()) if note]
    without = [key for key in texts if why.get(key) in NO_FORMULA or not (key in why or _written(latex[key]))]
    if bare := [key for key in without if has_text(texts[key])]:
        notes.append(
            f"{len(bare)} of {len(texts)} predictions have text but no formula ({bare[0]}, ...): write each as %ID, "
            "newline, $tokens$"
        )
    if empty := len(without) - len(bare):
        notes.append(f"{empty} of {len(texts)} predictions are empty")
    notes += unconverted({key: reason for key, reason in why.items() if key not in without}, len(texts))
    if raw := [key for key, formula in latex.items() if untokenized(formula)]:
        counts, _, _ = in_process({key: as_tokens(key, text) for key, text in texts.items()}, graphs, rules)
        if counts["exact"] != exact:
            notes.append(
                f"{len(raw)} of {len(texts)} predictions look untokenized ({raw[0]}, ...), and digits without blanks "
                f"are one number: {exact} expressions are right as they are; with --tokenize {counts['exact']} would be"
            )
    return notes


def _written(latex: str) -> bool:
    """Whether a formula has anything besides comments."""
    return any(line.strip() and not line.lstrip().startswith("%") for line in latex.split("\n"))


def _around(wrong: dict[str, str], captions: dict[str, list[str]]) -> list[str]:
    """Notes on what most of the wrong predictions begin or end with, and their captions do not: perhaps a wrapper."""
    notes = []
    split = {key: tokens for key, text in wrong.items() if captions[key] and (tokens := tokenize(formula_of(text)))}
    for place, at in (("begin", 0), ("end", -1)):
        others = {key: tokens[at] for key, tokens in split.items() if tokens[at] != captions[key][at]}
        for token, count in Counter(others.values()).most_common(1):
            if count > max(1, len(wrong) / 2):
                key = next(key for key in others if others[key] == token)
                shown = formula_of(wrong[key])[:MARGIN] if at == 0 else formula_of(wrong[key])[-MARGIN:]
                notes.append(
                    f"{count} of {len(wrong)} wrong predictions {place} with {token} and their captions do not ({key}: "
                    f"{shown}): what surrounds a formula counts as symbols, unless it is known"
                )
    return notes


def _refuse_to_replace(workdir: Path, sources: list[Path]) -> None:
    workdir.mkdir(parents=True, exist_ok=True)
    held = {path.name for path in workdir.iterdir() if not path.name.startswith(".")}
    inside = any(workdir.resolve() in path.resolve().parents for path in sources)
    scored = (workdir / "Results_pred_symlg" / "Metrics").is_dir()
    if (ours := held & {*FOLDERS}) and (held != ours or inside or not scored):
        raise InputError(f"{workdir}: its {min(ours)} would be replaced; use a separate folder as workdir")


def score_of(rows: Sequence[Expression], signature: str, neutral: int | None = None) -> Score:
    """The score of these expressions."""
    counts = counts_of(rows)
    low, high = proportion_interval(counts["exact"], len(rows))
    lengths = {row.id: row.length for row in rows if row.length is not None}
    rates = {metric.rate: percent(counts[metric.count], len(rows)) for metric in METRICS if metric.count in counts}
    fields: dict[str, Any] = counts | rates
    return Score(
        **fields,
        by_length=by_bucket(lengths, {row.id: row.exact for row in rows}) if lengths else None,
        ci95=(round(100 * low, 2), round(100 * high, 2)),
        signature=signature,
        missing=sum(row.status == "missing" for row in rows),
        unconverted=sum(row.status == "unconverted" for row in rows),
        neutral=neutral,
    )
