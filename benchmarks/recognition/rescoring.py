"""A search's hypotheses ranked anew with a language model (`search.language`).

A hypothesis of n tokens gets score + weight * log p / steps ** alpha + length * n. log p is the language model's
log-probability of its line, the line's end included, and steps = n + 1: as in each direction of the search.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hmerbench.benchmarks.config import Language, Search
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import digest_of
from hmerbench.models.inference.options import Hypothesis
from hmerbench.models.language import LINE_END, load_language_model
from hmerbench.models.vocab import SPECIAL, Vocabulary


class Lines:
    """Log-probabilities of hypotheses by the language model in a file.

    Raises UserError if it lacks a symbol of the vocabulary or ends of lines, CheckpointError if it cannot be loaded.
    """

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        self.model = load_language_model(path)
        symbols = [word for word in vocabulary.words if word not in SPECIAL]
        if lacking := [word for word in symbols if word not in self.model.lexicon.index]:
            raise UserError(
                f"{path}: this language model lacks {len(lacking)} of the recognizer's {len(symbols)} symbols, such as "
                f"{lacking[0]}; give one trained on captions (`reproduce-lm --recipes captions`)"
            )
        if LINE_END not in self.model.lexicon.index:
            raise UserError(f"{path}: this language model knows no ends of lines; give one trained with text.line_ends")
        with torch.no_grad():
            self.vectors_VF = self.model.vectors(torch.arange(len(self.model.lexicon)))

    @classmethod
    def of(cls, search: Search, vocabulary: Vocabulary) -> "Lines":
        """Those of a run's settings. Raises UserError also if the file is not the one that the run was made with."""
        path, digest = Path(search.language.weights), search.language.digest
        lines = cls(path, vocabulary)
        if digest and digest_of(path) != digest:
            raise UserError(
                f"{path}: the run was made with another language model; restore that one, or make another run"
            )
        return lines

    def __call__(self, hypotheses: Sequence[Sequence[str]]) -> list[float]:
        """Log-probability in nats of each; the same tokens are read once."""
        distinct = list(dict.fromkeys(map(tuple, hypotheses)))
        log_p = dict(zip(distinct, self.model.of_lines(distinct, self.vectors_VF), strict=True)) if distinct else {}
        return [log_p[tuple(tokens)] for tokens in hypotheses]


def total(score: Any, log_p: Any, tokens: Any, alpha: float, language: Language) -> Any:
    """The score by which hypotheses of a number of tokens are ranked; numbers, or arrays of them."""
    return score + language.weight * log_p / (tokens + 1) ** alpha + language.length * tokens


def rescored(
    hypotheses: Sequence[Hypothesis], lines: Lines, search: Search, vocabulary: Vocabulary
) -> list[Hypothesis]:
    """The hypotheses of an image with the language model's share in their scores, best first."""
    log_p = lines([vocabulary.decode(hypothesis.ids) for hypothesis in hypotheses])
    scored = [
        replace(h, score=total(h.score, value, len(h.ids), search.alpha, search.language))
        for h, value in zip(hypotheses, log_p, strict=True)
    ]
    return sorted(scored, key=lambda hypothesis: hypothesis.score, reverse=True)
