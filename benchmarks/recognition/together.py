"""What reads together with a run's own network: other networks (`search.together`), of which a word has the mean of the
log-probabilities, and a language model that ranks the search's hypotheses anew (`search.language`).

Each network was trained in a run of its own; they may differ in recipe, size and seed, not in the scale of the images.

A hypothesis of n tokens gets score + weight * log p / steps ** alpha + length * n. log p is the language model's
log-probability of its line, the line's end included, and steps = n + 1: as in each direction of the search.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hmerbench.benchmarks.config import Config, Language, Search
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import digest_of
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.models.inference.options import Hypothesis
from hmerbench.models.language import LINE_END, load_language_model
from hmerbench.models.network import Network
from hmerbench.models.vocab import SPECIAL, Vocabulary
from hmerbench.models.weights import load_weights


def others(config: Config, device: torch.device) -> list[Network]:
    """The other networks of a run, ready to read.

    Raises UserError for weights that are not those the run was made with, and for a network that cannot read as the run
    does; CheckpointError for weights that cannot be loaded.
    """
    together, found = config.search.together, list[Network]()
    for number, path in enumerate(together.weights):
        if not path.is_file():
            raise UserError(f"{path}: this run reads together with these weights; restore them, or make another run")
        if together.digests and digest_of(path) != together.digests[number]:
            raise UserError(f"{path}: this run was made with other weights; restore them, or make another run")
        network, its = load_weights(path), RunFolder(path.parent).settings
        if not network.settings.together:
            raise UserError(f"{path}: {its.recipe} reads alone; give runs of networks of CoMER's kind")
        if config.search.direction not in network.settings.directions:
            raise UserError(f"{path}: {its.recipe} does not read {config.search.direction}; give another run")
        if its.data.scale != config.data.scale:
            raise UserError(
                f"{path}: its network reads images at scale {its.data.scale:g}, this run at {config.data.scale:g}; "
                "give runs of the same scale"
            )
        found.append(network.to(device).eval())
    return found


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
