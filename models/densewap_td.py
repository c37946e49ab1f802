"""DenseWAP-TD: a network that writes a formula as a tree, symbol by symbol (Zhang et al., ICML 2020).

Each step has two halves, and either is a step of DenseWAP with an attention and a coverage of its own. The first starts
from the symbol written last and seeks the parent of the next one; the second starts from that parent and seeks the next
symbol and its relation to the parent. All is as in the authors' program (JianshuZhang/TreeDecoder), which departs from
the paper: softmax for the parent instead of sigmoid, a fifth loss, other weights of the losses.

Names carry shapes: b images, M hypotheses of an image (1 in training), h x w feature cells, L = h * w, D feature
channels, A attention channels, n size of states and embeddings, T steps, S = T entries of the memory (the root, then
every symbol but the last), V symbols, R relations.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.densewap import END, CoverageAttention, Encoder, Features, GRUCell, Memory, initialize
from hmerbench.models.layers import Dropout, float32
from hmerbench.models.network import NO_WORD, AttentionMaps, Network
from hmerbench.models.settings import DenseWAPTDSettings
from hmerbench.models.trees import RELATIONS, STRUCTURE, Node, NoTree, to_tree
from hmerbench.models.vocab import SPECIAL, Vocabulary

EPS = 1e-10  # of the authors, wherever they divide or take a logarithm
END_WORD = "</s>"


class TreeTargets(NamedTuple):
    """What is to be written at each step. An image's last step writes END, as a child of its last symbol."""

    symbols_bT: Tensor  # END also as padding
    parents_bT: Tensor  # entries of the memory: 0 is the root, i the symbol written at step i - 1
    relations_bT: Tensor  # 0 also at the end and as padding
    padding_bT: Tensor  # True after the end


def tree_targets(
    trees: Sequence[Sequence[Node]], ids: Mapping[str, int], padded: Callable[[int], int] = int
) -> TreeTargets:
    """The targets of a batch of trees, given the ids of symbols."""
    lengths_b1 = torch.tensor([[len(tree) + 1] for tree in trees])
    steps_T = torch.arange(padded(int(lengths_b1.max())))
    symbols_bT = torch.full((len(trees), len(steps_T)), END)
    parents_bT, relations_bT = torch.zeros_like(symbols_bT), torch.zeros_like(symbols_bT)
    for row, tree in enumerate(trees):
        symbols_bT[row, : len(tree)] = torch.tensor([ids[node.symbol] for node in tree])
        parents_bT[row, : len(tree) + 1] = torch.tensor([*(node.parent for node in tree), len(tree)])
        relations_bT[row, : len(tree)] = torch.tensor([RELATIONS.index(node.relation) for node in tree])
    return TreeTargets(symbols_bT, parents_bT, relations_bT, steps_T >= lengths_b1)


class Half(NamedTuple):
    """What half a step comes to."""

    state_bMn: Tensor
    context_bMD: Tensor
    attention_bML: Tensor


class Scores(NamedTuple):
    """Logits of all steps of whole trees; of the memory, energies."""

    symbols_bTV: Tensor
    parent_symbols_bTV: Tensor
    relations_bTR: Tensor
    entries_bTS: Tensor


class Losses(NamedTuple):
    """The five losses, each of them a mean over the images."""

    symbol: Tensor
    parent_symbol: Tensor
    relation: Tensor
    parent: Tensor  # which entry of the memory it is
    attention: Tensor  # where the parent is sought, compared with where attention was when it was written


WEIGHTS = (1.0, 0.1, 1.0, 1.0, 0.1)  # of the losses in their sum


def shares(energies: Tensor, visible: Tensor) -> Tensor:
    """Shares of the last dimension's visible entries, which sum to a little less than 1.

    As in the authors' program the maximum is taken over all rows and entries: in a row far below it EPS counts.
    """
    weights = (energies - energies.amax()).exp() * visible
    return weights / (weights.sum(-1, keepdim=True) + EPS)


class Seeker(nn.Module):
    """Half a step: a cell that reads a symbol, attention, and a cell that reads what was seen."""

    def __init__(
        self, features: int, c: DenseWAPTDSettings, weigh: Callable[[Tensor, Tensor], Tensor], *, state_bias: bool
    ) -> None:
        """`weigh` makes attention of energies [b, M, L] and what is added to them at padding."""
        super().__init__()
        self.weigh = weigh
        self.symbol_cell = GRUCell(c.hidden, c.hidden)
        self.attention = CoverageAttention(features, c)
        self.context_cell = GRUCell(features, c.hidden, state_bias=state_bias)

    def forward(
        self,
        memory: Memory,
        covered_bMLA: Tensor,
        products_bM3n: Tensor,
        state_bMn: Tensor,
        padding_b11: Tensor | None = None,
    ) -> Half:
        """Half a step from a symbol, which is given by its products in the first cell. At padding the state stays."""
        middle_bMn = unless(padding_b11, self.symbol_cell(products_bM3n, state_bMn), state_bMn)
        attention_bML = self.weigh(self.attention.energies(covered_bMLA, middle_bMn), memory.bias_b1L)
        context_bMD = attention_bML @ memory.maps_bLD
        after_bMn = self.context_cell(self.context_cell.input(context_bMD), middle_bMn)
        return Half(unless(padding_b11, after_bMn, middle_bMn), context_bMD, attention_bML)


def unless(padding_b11: Tensor | None, new_bMn: Tensor, old_bMn: Tensor) -> Tensor:
    """The new states, but the old ones at padding, if there is any."""
    return new_bMn if padding_b11 is None else torch.where(padding_b11, old_bMn, new_bMn)


def parent_attention(energies_bML: Tensor, bias_b1L: Tensor) -> Tensor:
    """Attention [b, M, L] of the first half: 0 at padding."""
    return shares(energies_bML, bias_b1L == 0)


def symbol_attention(energies_bML: Tensor, bias_b1L: Tensor) -> Tensor:
    """That of the second half, with EPS added in every cell, as in the authors' program."""
    return (energies_bML + bias_b1L).softmax(-1) + EPS


class TreeDecoder(nn.Module):
    """From features to trees."""

    def __init__(self, features: int, symbols: int, c: DenseWAPTDSettings) -> None:
        super().__init__()
        n = c.hidden
        self.embedding = nn.Embedding(symbols, n)
        self.parent = Seeker(features, c, parent_attention, state_bias=False)
        self.child = Seeker(features, c, symbol_attention, state_bias=True)
        self.entry_key = nn.Linear(n, c.attention)
        self.entry_query = nn.Linear(n, c.attention, bias=False)
        self.entry_energy = nn.Linear(c.attention, 1)
        self.from_context = nn.Linear(features, n)  # of either half
        self.from_state = nn.Linear(n, n)
        self.from_parent = nn.Linear(n, n)
        self.symbol = nn.Linear(n // 2, symbols)
        self.parent_symbol = nn.Linear(n // 2, symbols)
        self.from_contexts = nn.Linear(2 * features, c.relation_hidden)
        self.relation = nn.Linear(c.relation_hidden, len(RELATIONS))
        self.dropout = Dropout(c.dropout)

    @property
    def root(self) -> int:
        """The number of the root among the words: that after all symbols."""
        return self.embedding.num_embeddings

    def words(self) -> Tensor:
        """The embeddings of all symbols, and that of the root: zeros."""
        return F.pad(self.embedding.weight, (0, 0, 0, 1))

    def entry_energies(self, query_bTn: Tensor, key_bSA: Tensor) -> Tensor:
        """Energies [b, T, S] of memory entries, given states of the first half, and `entry_key` of those stored."""
        mixed_bTSA = torch.tanh(key_bSA[:, None] + self.entry_query(query_bTn)[:, :, None])
        return float32(self.entry_energy(mixed_bTSA)[..., 0])

    def symbol_scores(self, child: Half, word_bMn: Tensor) -> Tensor:
        """Logits [b, M, V] of symbols, given `from_parent` of their parents."""
        seen_bMn = self.from_context(child.context_bMD) + self.from_state(child.state_bMn)
        return float32(self.symbol(self._maxout(seen_bMn + word_bMn)))

    def relation_scores(self, child: Half, parent: Half) -> Tensor:
        """Logits [b, M, R] of relations to the parent."""
        contexts = torch.cat((child.context_bMD, parent.context_bMD), dim=-1)
        return float32(self.relation(self.dropout(self.from_contexts(contexts))))

    def _maxout(self, x_bMn: Tensor) -> Tensor:
        return self.dropout(x_bMn.unflatten(-1, (-1, 2)).amax(-1))

    def forward(self, features: Features, targets: TreeTargets) -> tuple[Half, Half, Scores]:
        """The two halves of all steps of whole trees (M is T here), and the scores."""
        words, seekers = self.words(), (self.parent, self.child)
        entry_bS = F.pad(targets.symbols_bT[:, :-1], (1, 0), value=self.root)
        parent_bT = entry_bS.gather(1, targets.parents_bT)
        products = [  # of what a half starts from, at every step
            F.embedding(word_bT.T[:, :, None], seeker.symbol_cell.input(words))
            for seeker, word_bT in zip(seekers, (entry_bS, parent_bT), strict=True)
        ]
        memories = [seeker.attention.remember(features.maps_bhwD, features.mask_bhw) for seeker in seekers]
        past_b1hw = torch.zeros_like(features.maps_bhwD[:, None, ..., 0])
        state_b1n, pasts, halves = features.state_bn[:, None], [past_b1hw, past_b1hw], ([], [])
        for t, padding_b11 in enumerate(targets.padding_bT.T[:, :, None, None]):
            for i, seeker in enumerate(seekers):
                covered_b1LA = seeker.attention.cover(memories[i], pasts[i])
                half = seeker(memories[i], covered_b1LA, products[i][t], state_b1n, padding_b11)
                pasts[i] = pasts[i] + half.attention_bML.view_as(past_b1hw)
                state_b1n = half.state_bMn
                halves[i].append(half)
        parent, child = (Half(*(torch.cat(steps, dim=1) for steps in zip(*half, strict=True))) for half in halves)
        entries_bSn = torch.cat((features.state_bn[:, None], child.state_bMn[:, :-1]), dim=1)
        scores = Scores(
            self.symbol_scores(child, F.embedding(parent_bT, self.from_parent(words))),
            float32(self.parent_symbol(self._maxout(self.from_context(parent.context_bMD)))),
            self.relation_scores(child, parent),
            self.entry_energies(parent.state_bMn, self.entry_key(entries_bSn)),
        )
        return parent, child, scores


def tree_losses(
    parent: Half, child: Half, scores: Scores, mask_bhw: Tensor, targets: TreeTargets, label_smoothing: float = 0.0
) -> Losses:
    """The losses of a batch, from all that the decoder returns. Only those of classes are smoothed."""
    symbols_bT, parents_bT, relations_bT, padding_bT = targets
    is_parent_bTS = F.one_hot(parents_bT, parents_bT.shape[1]).to(scores.entries_bTS.dtype)
    parent_symbols_bT = F.pad(symbols_bT[:, :-1], (1, 0)).gather(1, parents_bT)  # of the root there is none
    real_bT = (~padding_bT).to(is_parent_bTS.dtype)
    later_bT = F.pad(real_bT[:, 1:], (1, 0))  # without the first step …
    inner_bT = later_bT * F.pad(real_bT[:, 1:], (0, 1))  # … and without the end

    def mean(loss_bT: Tensor, counted_bT: Tensor) -> Tensor:
        return (loss_bT.sum(1) / (counted_bT.sum(1) + EPS)).mean()

    def entropy(logits_bTK: Tensor, target_bT: Tensor, counted_bT: Tensor) -> Tensor:
        logits_bKT = logits_bTK.transpose(1, 2)
        loss_bT = F.cross_entropy(logits_bKT, target_bT, reduction="none", label_smoothing=label_smoothing)
        return mean(loss_bT * counted_bT, counted_bT)

    written_bTS = torch.ones_like(is_parent_bTS).tril() * real_bT[:, :, None]
    surprise_bTS = -(shares(scores.entries_bTS, written_bTS) + EPS).log()
    found_bTL = is_parent_bTS @ F.pad(child.attention_bML[:, :-1], (0, 0, 1, 0)) + EPS  # of the root: nowhere
    sought_bTL = parent.attention_bML + EPS
    divergence_bTL = found_bTL * (found_bTL / sought_bTL).log() * ~mask_bhw.flatten(1)[:, None]
    return Losses(
        symbol=entropy(scores.symbols_bTV, symbols_bT, real_bT),
        parent_symbol=entropy(scores.parent_symbols_bTV, parent_symbols_bT, later_bT),
        relation=entropy(scores.relations_bTR, relations_bT, inner_bT),
        parent=mean((is_parent_bTS * surprise_bTS).sum(-1) * real_bT, real_bT),
        # at padding, where the authors' program does not leave it out, next to nothing
        attention=mean(divergence_bTL.sum(-1), real_bT),
    )


class DenseWAPTD(Network):
    """The whole network. Its symbols are END and then the vocabulary's words that are nodes."""

    settings: DenseWAPTDSettings
    word_rows = tuple(f"decoder.{name}.weight" for name in ("embedding", "symbol", "parent_symbol"))
    triples = tuple(f"_cell.{part}.weight" for part in ("input", "state"))

    def __init__(self, settings: DenseWAPTDSettings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(settings, vocabulary)
        none = (*SPECIAL, *STRUCTURE)
        self.symbols = (END_WORD, *(word for word in self.vocabulary.words if word not in none))
        self.ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        self.encoder = Encoder(settings)
        self.decoder = TreeDecoder(self.encoder.net.out_channels, len(self.symbols), settings)
        self.apply(initialize)

    def unfit(self, caption: Sequence[str]) -> str | None:
        """Why a caption has no tree."""
        try:
            to_tree(caption)
        except NoTree as reason:
            return str(reason)
        return None

    def targets(self, captions: Sequence[Sequence[str]], padded: Callable[[int], int] = int) -> TreeTargets:
        """The trees of captions. Raises NoTree for a caption that has none."""
        for caption in captions:
            self.vocabulary.encode(caption)  # refuses words that it does not have
        return tree_targets([to_tree(caption) for caption in captions], self.ids, padded)

    def decode(self, images_b1HW: Tensor, mask_bHW: Tensor, targets: TreeTargets) -> tuple[Half, Half, Scores, Tensor]:
        """What the decoder returns, and the mask of the features. It runs in the type of its weights, as rounding adds
        up from step to step."""
        features = self.encode(images_b1HW, mask_bHW)
        with torch.autocast(images_b1HW.device.type, enabled=False):
            return *self.decoder(features, targets), features.mask_bhw

    def encode(self, images_b1HW: Tensor, mask_bHW: Tensor) -> Features:
        """What the encoder reads, in the type of the decoder."""
        maps_bhwD, mask_bhw, state_bn = self.encoder(images_b1HW, mask_bHW)
        return Features(float32(maps_bhwD), mask_bhw, float32(state_bn))

    def teacher_forced(self, images_b1HW: Tensor, mask_bHW: Tensor, targets: TreeTargets) -> tuple[Tensor, Tensor]:
        """Logits [b, T, V] of symbols, each given the true tree before it and its true parent, and the true symbols."""
        _, _, scores, _ = self.decode(images_b1HW, mask_bHW, targets)
        return scores.symbols_bTV, targets.symbols_bT.masked_fill(targets.padding_bT, NO_WORD)

    def forward(
        self, images_b1HW: Tensor, mask_bHW: Tensor, targets: TreeTargets, label_smoothing: float = 0.0
    ) -> Tensor:
        """The weighted sum of the losses; on the CPU with only as many steps as the largest tree takes."""
        if images_b1HW.device.type == "cpu":
            steps = int((~targets.padding_bT).sum(1).max())
            targets = TreeTargets(*(x_bT[:, :steps] for x_bT in targets))
        parts = tree_losses(*self.decode(images_b1HW, mask_bHW, targets), targets, label_smoothing)
        return torch.stack([weight * part for weight, part in zip(WEIGHTS, parts, strict=True)]).sum()

    def trace(self, images_11HW: Tensor, mask_1HW: Tensor, tokens: Sequence[str]) -> AttentionMaps:
        """For a symbol, where it is found; for a brace, ^ or _, where the parent of the next symbol is sought."""
        parent, child, _, mask_1hw = self.decode(images_11HW, mask_1HW, self.targets([tokens]))
        sought_TL, found_TL = parent.attention_bML[0], child.attention_bML[0]
        looked, step = list[Tensor](), 0
        for token in (*tokens, END_WORD):
            looked.append(sought_TL[step] if token in STRUCTURE else found_TL[step])
            step += token not in STRUCTURE
        return AttentionMaps(torch.stack(looked).unflatten(-1, mask_1hw.shape[1:]), None, self.settings.stride)
