"""Notes on a score: what has an effect on it that its user may not know of, a sentence each."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hmerbench.evaluation.lgeval.label_graph import LabelGraph
from hmerbench.evaluation.scoring.conventions import TWO_CHILDREN, UNDECIDED, convention
from hmerbench.evaluation.scoring.inputs import GroundTruth, as_tokens
from hmerbench.evaluation.scoring.metrics import Expression
from hmerbench.evaluation.scoring.outcome import Outcome, in_process
from hmerbench.evaluation.scoring.wrappers import Predictions
from hmerbench.evaluation.symlg import Rules
from hmerbench.evaluation.symlg.formula import formula_of, has_text, tokenize, tokens_of, untokenized
from hmerbench.evaluation.symlg.latex_commands import DROPPED

SHOWN = 5  # of the reasons why predictions do not convert
FEW = 10  # predictions that may well be equal to their captions
MARGIN = 30  # characters shown of the beginning or end of a prediction
NO_FORMULA = ("empty prediction", "empty expression", "no $...$ formula in the file")
_COMMENT = re.compile(r"^[^\S\n]*%.*", re.MULTILINE)
_PLACE = re.compile(r" at token \d+$|^\d+ (?=tokens|characters|symbols)")  # what makes a reason one prediction's own


def notes_on(
    texts: Predictions,
    truth: GroundTruth,
    graphs: Mapping[str, LabelGraph],
    rows: Sequence[Expression],
    found: Outcome,
    rules: Rules | None,
) -> Iterator[str]:
    """All notes on a score but `left_out`; `graphs` are the truth's, `rules` None for the scripts of LGEVAL_BIN."""
    if truth.made:
        yield "the ground truth has no symLG; it was made from the captions"
    if rules is None:
        yield from unconverted(found.reasons, len(texts))
    else:
        yield from _other_convention(texts, graphs, found, rules)
        yield from filter(None, [texts.note()])
        yield from _without_formula(texts, found)
        yield from _untokenized(texts, graphs, found, rules)
    wrong = {row.id: texts[row.id] for row in rows if row.status == "converted" and not row.exact}
    if rules:
        yield from _dropped(wrong, len(texts))
    if truth.captions:
        yield from _around(wrong, truth.captions)
        if len(texts) > FEW and all(tokens_of(text) == truth.captions[key] for key, text in texts.items()):
            yield f"all {len(texts)} predictions are exactly the captions: are they the truth itself?"


def left_out(stray: int, missing: int = 0, n: int = 0) -> Iterator[str]:
    """Notes on predictions without ground truth, and on those of n expressions without a prediction."""
    if stray:
        have, are = ("prediction has", "is") if stray == 1 else ("predictions have", "are")
        yield f"{stray} {have} no ground truth and {are} left out"
    if missing:
        yield f"{missing} of {n} expressions have no prediction"


def unconverted(why: Mapping[str, str], n: int) -> Iterator[str]:
    """A note on those of n predictions that do not convert, with the most frequent reasons; `why` has each one's."""
    counts = Counter(_PLACE.sub("", reason) for reason in why.values())
    shown = [f"{reason} ({count})" for reason, count in counts.most_common(SHOWN)]
    if (others := len(counts) - SHOWN) > 0:
        shown.append(f"{others} other reason{'s' * (others > 1)}")
    if why:
        yield f"{len(why)} of {n} predictions do not convert: {', '.join(shown)}"


def _without_formula(texts: Predictions, found: Outcome) -> Iterator[str]:
    """Notes on predictions that are empty, have no formula, or do not convert for another reason."""
    why, n = found.reasons, len(texts)
    without = [
        key
        for key, text in texts.items()
        if (why[key] in NO_FORMULA if key in why else not _COMMENT.sub("", formula_of(text)).strip())
    ]
    if bare := [key for key in without if has_text(texts[key])]:
        told = f"{len(bare)} of {n} predictions have text but no formula ({bare[0]}, ...)"
        yield f"{told}: write each as %ID, newline, $tokens$"
    if empty := len(without) - len(bare):
        yield f"{empty} of {n} predictions are empty"
    yield from unconverted({key: reason for key, reason in why.items() if key not in without}, n)


def _untokenized(texts: Predictions, graphs: Mapping[str, LabelGraph], found: Outcome, rules: Rules) -> Iterator[str]:
    """A note on raw LaTeX, if splitting it into tokens has an effect on the score."""
    exact = found.counts["exact"]
    if raw := [key for key, text in texts.items() if untokenized(formula_of(text))]:
        split = in_process({key: as_tokens(key, text) for key, text in texts.items()}, graphs, rules).counts["exact"]
        if split != exact:
            yield (
                f"{len(raw)} of {len(texts)} predictions look untokenized ({raw[0]}, ...), and digits without blanks "
                f"are one number: {exact} expressions are right as they are; with --tokenize {split} would be"
            )


def _other_convention(
    texts: Predictions, graphs: Mapping[str, LabelGraph], found: Outcome, rules: Rules
) -> Iterator[str]:
    """A note with the effect on the score, where the truth's roots follow another edition of the converter than the
    predictions."""
    name, _ = convention(graphs.values())
    if name != UNDECIDED and (name == TWO_CHILDREN) != rules.edition.second_inside:
        other = rules._replace(edition=rules.edition._replace(second_inside=name == TWO_CHILDREN))
        yield (
            f"the ground truth follows the {name}, the predictions are converted the other way: "
            f"{found.counts['exact']} expressions are right; under the truth's convention "
            f"{in_process(texts, graphs, other).counts['exact']} would be"
        )


def _dropped(wrong: Mapping[str, str], n: int) -> Iterator[str]:
    """A note on wrong predictions with commands that the official converter drops with their content."""
    if held := [found for text in wrong.values() if (found := DROPPED.intersection(tokenize(formula_of(text))))]:
        counts = Counter(command for found in held for command in sorted(found))
        shown = ", ".join(f"{command} ({count})" for command, count in counts.most_common(SHOWN))
        told = f"{len(held)} of {n} predictions are wrong and hold commands"
        yield f"{told} that the official converter drops with their content: {shown}"


def _around(wrong: Mapping[str, str], captions: Mapping[str, list[str]]) -> Iterator[str]:
    """Notes on what most of the wrong predictions begin or end with, and their captions do not: perhaps a wrapper."""
    tokenized = {key: tokens for key, text in wrong.items() if captions[key] and (tokens := tokenize(formula_of(text)))}
    for place, at, part in (("begin", 0, slice(MARGIN)), ("end", -1, slice(-MARGIN, None))):
        usual = Counter(caption[at] for caption in captions.values() if caption)  # what formulas themselves begin with
        others = {key: tokens[at] for key, tokens in tokenized.items() if usual[tokens[at]] <= len(captions) / 20}
        others = {key: token for key, token in others.items() if token not in ("}", captions[key][at])}
        for token, count in Counter(others.values()).most_common(1):
            if count > max(1, len(wrong) / 2):
                key = next(key for key in others if others[key] == token)
                yield (
                    f"{count} of {len(wrong)} wrong predictions {place} with {token} and their captions do not ({key}: "
                    f"{formula_of(wrong[key])[part]}): what surrounds a formula counts as symbols, unless it is known"
                )
