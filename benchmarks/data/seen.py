"""Which captions a training had: those of the training set, and of the expressions that it generates from them."""

from contextlib import suppress

from hmerbench.benchmarks.config import Data
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.exchange import exchanged
from hmerbench.benchmarks.data.samples import Sample, evenly, with_ink
from hmerbench.benchmarks.data.sub_expressions import cut
from hmerbench.benchmarks.errors import UserError
from hmerbench.evaluation.datasets import TRAIN

Caption = tuple[str, ...]


def seen(archive: Archive, data: Data, wanted: set[Caption]) -> set[Caption]:
    """Those of the `wanted` captions that a training with these settings has, also as a part of an expression or put
    together from two; formulas that substituted symbols happen to spell are not counted. Held-out ones are, as they
    select the epoch. Raises UserError without pen strokes if they are needed."""
    training = {id_: tuple(tokens) for id_, tokens in evenly([*archive.captions(TRAIN).items()], data.limit)}
    found = wanted & {*training.values()}
    if data.sub_expressions:
        found |= _parts(archive, training, data.sub_expressions, wanted - found)
    if data.exchanged:
        samples = [sample for sample in archive.samples(TRAIN, data.max_area) if sample.id in training]
        made = exchanged(with_ink(samples, archive.ink), data.exchanged)
        found |= wanted & {sample.tokens for sample in made}
    return found


def _parts(archive: Archive, training: dict[str, Caption], count: int, wanted: set[Caption]) -> set[Caption]:
    """The wanted captions among parts; only of expressions that have one are the pen strokes read."""
    of = {id_: {tokens[a:b] for a, b in cut(id_, tokens, count)} & wanted for id_, tokens in training.items()}
    hits = [Sample(id_, training[id_], archive.image(TRAIN, id_)) for id_, found in of.items() if found]
    ink = archive.ink
    with suppress(UserError):  # none of these has strokes
        hits = with_ink(hits, ink) if hits else []
    return {part for sample in hits if sample.ink for part in of[sample.id]}
