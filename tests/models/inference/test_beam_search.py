"""The beam search finds the best sequences of a decoder that is no network: a table of log-probabilities."""

from itertools import product

import pytest
import torch
from torch import Tensor

from hmerbench.models.inference import beam_search, searcher
from hmerbench.models.inference.beam_search import BeamSearch, NarrowingBeamSearch
from hmerbench.models.inference.options import SearchOptions

V, START, END, LONGEST = 6, 1, 2, 3  # words, the first and the last of a sequence, at most so many between them
BEAMS = (V - 1) ** LONGEST  # one for every prefix


class Table:
    """Logits that depend on the group and on the prefix: on its sum and length. The longest prefixes must end."""

    def __init__(self, groups: int, beams: int, seed: int = 0, room: int = 2) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.logits_GTSV = torch.randn(groups, LONGEST + 1, V * LONGEST, V, generator=draw, dtype=torch.float64)
        self.logits_GTSV[:, LONGEST, :, [v for v in range(V) if v != END]] = -1e3
        self.sums_GM = torch.zeros(groups, beams, dtype=torch.long)
        self.room, self.used, self.steps, self.compacted = room, 0, 0, 0

    @property
    def full(self) -> bool:
        return self.used == self.room

    def feed(self, tokens_GM: Tensor) -> Tensor:
        assert not self.full
        self.sums_GM = self.sums_GM + tokens_GM
        self.used, self.steps = self.used + 1, self.steps + 1
        return self.logits_GTSV[torch.arange(len(tokens_GM))[:, None], self.steps - 1, self.sums_GM]

    def reorder(self, parents_GM: Tensor) -> None:
        self.sums_GM = self.sums_GM.gather(1, parents_GM)

    def compact(self, live_G: Tensor) -> None:
        self.logits_GTSV, self.sums_GM = self.logits_GTSV[live_G], self.sums_GM[live_G]
        self.used, self.compacted = 0, self.compacted + 1


def every_sequence(tables: list[Table], group: int) -> list[tuple[float, tuple[int, ...]]]:
    """Score and words of every sequence that ends, best first."""
    logp_TSV = torch.stack([table.logits_GTSV[group].log_softmax(-1) for table in tables]).mean(0).tolist()
    result = []
    for length in range(LONGEST + 1):
        for words in product([v for v in range(V) if v != END], repeat=length):
            total = sum(logp_TSV[t][START + sum(words[:t])][word] for t, word in enumerate((*words, END)))
            result.append((total / (length + 1), words))
    return sorted(result, reverse=True)


def narrowed(table: Table, group: int, beams: int) -> list[tuple[float, tuple[int, ...]]]:
    """Score and words of what a beam finds that narrows by one with every hypothesis it completes, best first."""
    logp_TSV = table.logits_GTSV[group].log_softmax(-1).tolist()
    prefixes: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    complete: list[tuple[float, tuple[int, ...]]] = []
    while len(complete) < beams:
        longer = [
            (total + logp_TSV[len(words)][START + sum(words)][word], (*words, word))
            for total, words in prefixes
            for word in range(V)
        ]
        best = sorted(longer, reverse=True)[: beams - len(complete)]
        prefixes = [(total, words) for total, words in best if words[-1] != END]
        complete += [(total / len(words), words[:-1]) for total, words in best if words[-1] == END]
    return sorted(complete, reverse=True)


def searched(
    tables: list[Table], options: SearchOptions, search: type[BeamSearch] = BeamSearch
) -> list[list[tuple[float, tuple[int, ...]]]]:
    """Score and words of the hypotheses of every group, best first."""
    groups, M = len(tables[0].logits_GTSV), options.beam_size
    start_G, end_G = torch.full((groups,), START), torch.full((groups,), END)
    found = searcher.beam_search(search, tables, start_G, end_G, options)
    rows = zip(*(column.tolist() for column in found), strict=True)
    listed = [(score, tuple(tokens[:length])) for tokens, length, score in rows]
    return [listed[M * group : M * (group + 1)] for group in range(groups)]


@pytest.mark.parametrize("sizes", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_a_beam_for_every_prefix_finds_the_best_sequences(seed: int, sizes: int) -> None:
    tables = [Table(groups=4, beams=BEAMS, seed=seed + 10 * size) for size in range(sizes)]
    expected = [every_sequence(tables, group) for group in range(4)]
    for best, found in zip(expected, searched(tables, SearchOptions(BEAMS, LONGEST + 2)), strict=True):
        assert [words for _, words in found[:10]] == [words for _, words in best[:10]]
        assert [score for score, _ in found[:10]] == pytest.approx([score for score, _ in best[:10]])


@pytest.mark.parametrize("beams", [1, 2, 3, 5])
def test_a_narrowing_beam_ends_with_as_many_hypotheses_as_it_had_beams(beams: int) -> None:
    table = Table(groups=12, beams=beams, seed=4)
    expected = [narrowed(table, group, beams) for group in range(12)]
    for best, found in zip(expected, searched([table], SearchOptions(beams, 6), NarrowingBeamSearch), strict=True):
        assert [words for _, words in found] == [words for _, words in best]
        assert [score for score, _ in found] == pytest.approx([score for score, _ in best])


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_dropping_finished_groups_changes_nothing(beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, late or hardly ever, and however often the decoder is full."""
    outcomes, counts = [], []
    for room, share in ((1, 1 / 8), (2, 1 / 2), (LONGEST + 2, 2)):
        monkeypatch.setattr(beam_search, "SHARE_TO_DROP", share)
        table = Table(groups=12, beams=beams, seed=3, room=room)
        outcomes.append(searched([table], SearchOptions(beams, LONGEST + 2)))
        counts.append(table.compacted)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert counts[0] >= counts[1] > counts[2] == 0
