"""The searches of DenseWAP, left to right by log-probability / length, which counts the end, and of DenseWAP-TD: beam
search over trees, by the rules of its authors.

Names carry shapes: b images, G = b groups of M hypotheses; of trees, N open hypotheses, S entries of their memories, P
parents tried with each, R = N * P tries, h x w feature cells, L = h * w, A attention channels, n size of states, V
symbols.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hmerbench.models.densewap import END, START, Cache, DenseWAP, Features
from hmerbench.models.densewap_td import EPS, DenseWAPTD, Half, TreeDecoder, shares
from hmerbench.models.inference.beam_search import NEVER, NarrowingBeamSearch
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.inference.searcher import View, beam_search, frozen
from hmerbench.models.trees import ILLEGAL, RELATIONS, Node, to_latex
from hmerbench.models.vocab import EOS


def refuse(network: str, options: SearchOptions) -> None:
    """Raise ValueError for options that neither search has."""
    if options.direction == "r2l":
        raise ValueError(f"{network} reads left to right only; direction must be l2r or both")
    if options.early_stopping:
        raise ValueError(f"{network}'s search ends by rules of its own; leave early_stopping False")


class DenseWAPDecoder(Cache):
    """Decodes step by step; b images, which are the groups of the search, M hypotheses of each."""

    full = False

    def __init__(self, network: DenseWAP, view: View, beams: int) -> None:
        memory, *first = network.decoder.begin(network.encode(*view))
        super().__init__(memory, *(x.repeat_interleave(beams, dim=1) for x in first))
        self.network = network

    def feed(self, tokens_GM: Tensor) -> Tensor:
        """Logits [b, M, V] of the next class after one more class per hypothesis; the first is START."""
        return self.network.step(tokens_GM, self)


class DenseWAPSearch:
    """Reads images with a network in evaluation mode, of which it keeps a copy. Raises ValueError in training mode."""

    rules = "densewap"

    def __init__(self, model: DenseWAP) -> None:
        self.model = frozen(model)

    @torch.inference_mode()
    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each image, best first; an image has none if nothing ends within `max_len`.

        Several views are the same images at other sizes, whose log-probabilities are averaged. Raises ValueError for
        more hypotheses than classes, for early stopping and for reading right to left.
        """
        if options.beam_size > (classes := self.model.decoder.classes.out_features):
            raise ValueError(f"beam_size must be at most the {classes} classes, not {options.beam_size}")
        refuse("DenseWAP", options)
        M, (images_b1HW, _) = options.beam_size, views[0]
        decoders = [DenseWAPDecoder(self.model, view, M) for view in views]
        start_b = torch.full(images_b1HW.shape[:1], START, device=images_b1HW.device)
        found = beam_search(NarrowingBeamSearch, decoders, start_b, torch.full_like(start_b, END), options)
        hypotheses = [
            Hypothesis(tuple(word + EOS for word in words[:length]), score, score, 0.0, "l2r")
            for words, length, score in zip(*(column.tolist() for column in found), strict=True)
        ]
        return [
            [h for h in hypotheses[M * image : M * (image + 1)] if h.score != NEVER]
            for image in range(len(images_b1HW))
        ]


# --------------------------------------------------------------------------------------------------------- DenseWAP-TD


@dataclass(frozen=True)
class WrittenTree:
    """A complete hypothesis, step by step. Of the first and the last relation the value means nothing."""

    symbols: tuple[int, ...]  # the last one is END
    parents: tuple[int, ...]  # 0 is the root, i the symbol of step i - 1
    relations: tuple[int, ...]
    cost: float  # negative log-probability of all symbols and parents

    def nodes(self, symbols: Sequence[str]) -> list[Node]:
        """The tree without its end, given what the symbols are called."""
        names = ["Start", *(RELATIONS[relation] for relation in self.relations[1:])]
        steps = zip(self.symbols[:-1], self.parents, names, strict=False)
        return [Node(symbols[symbol], parent, name) for symbol, parent, name in steps]


class TreeState:
    """Reads one image: what the decoder needs to know of every open hypothesis, and all products of its embeddings."""

    def __init__(self, decoder: TreeDecoder, features: Features) -> None:
        self.decoder, words = decoder, decoder.words()  # the root's embedding comes last
        self.parent_products_V3n = decoder.parent.symbol_cell.input(words)
        self.child_products_V3n = decoder.child.symbol_cell.input(words)
        self.from_parent_Vn = decoder.from_parent(words)
        self.parent_memory = self.decoder.parent.attention.remember(features.maps_bhwD, features.mask_bhw)
        self.child_memory = self.decoder.child.attention.remember(features.maps_bhwD, features.mask_bhw)
        self.state_1Nn = features.state_bn[None]
        self.key_NSA = self.decoder.entry_key(self.state_1Nn)
        self.parent_past_1Nhw = self.child_past_1Nhw = torch.zeros_like(features.maps_bhwD[None, ..., 0])

    def seek_parents(self, last_N: Tensor) -> Tensor:
        """Log-probabilities [N, S] of the parents of the next symbols, given the last ones."""
        seeker, products_1N3n = self.decoder.parent, self.parent_products_V3n[last_N][None]
        covered_1NLA = seeker.attention.cover(self.parent_memory, self.parent_past_1Nhw)
        self.parent = seeker(self.parent_memory, covered_1NLA, products_1N3n, self.state_1Nn)
        self.parent_past_1Nhw = self.parent_past_1Nhw + self.parent.attention_bML.view_as(self.parent_past_1Nhw)
        # the authors' memory has room for symbols to come, the state of which is 0: it counts for the maximum alone
        room_N1A = self.decoder.entry_key.bias.expand(len(last_N), 1, -1)
        energies_N1S = self.decoder.entry_energies(
            self.parent.state_bMn.transpose(0, 1), torch.cat((self.key_NSA, room_N1A), dim=1)
        )
        written_S = torch.ones_like(energies_N1S[0, 0])
        written_S[-1] = 0
        return (shares(energies_N1S, written_S)[:, 0, :-1] + EPS).log()

    def seek_symbols(self, rows_R: Tensor, parents_R: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of symbols [R, V] and relations [R, 7], given hypotheses and the parent tried with each."""
        seeker, products_1R3n = self.decoder.child, self.child_products_V3n[parents_R][None]
        covered_1NLA = seeker.attention.cover(self.child_memory, self.child_past_1Nhw)
        parent = Half(*(x[:, rows_R] for x in self.parent))
        self.rows_R = rows_R
        self.child = seeker(self.child_memory, covered_1NLA[:, rows_R], products_1R3n, parent.state_bMn)
        symbols_1RV = self.decoder.symbol_scores(self.child, self.from_parent_Vn[parents_R][None])
        relations_1R7 = self.decoder.relation_scores(self.child, parent)
        return (symbols_1RV[0].softmax(-1) + EPS).log(), relations_1R7[0].log_softmax(-1)

    def write(self, tries_N: Tensor) -> None:
        """Keep these tries and drop the others."""
        rows_N, attention_1Nhw = self.rows_R[tries_N], self.child.attention_bML[:, tries_N]
        self.state_1Nn = self.child.state_bMn[:, tries_N]
        new_N1A = self.decoder.entry_key(self.state_1Nn).transpose(0, 1)
        self.key_NSA = torch.cat((self.key_NSA[rows_N], new_N1A), dim=1)
        self.parent_past_1Nhw, past_1Nhw = self.parent_past_1Nhw[:, rows_N], self.child_past_1Nhw[:, rows_N]
        self.child_past_1Nhw = past_1Nhw + attention_1Nhw.view_as(past_1Nhw)


@torch.inference_mode()
def tree_search(
    decoder: TreeDecoder, views: Sequence[Features], beam_size: int = 10, max_len: int = 200, tries: int = 3
) -> list[WrittenTree]:
    """The hypotheses that end within `max_len` steps, as they end; at most `beam_size`, and there may be none.

    `views` are the features of one image at one or more sizes: log-probabilities are the means over them. With each of
    the `tries` most probable parents of a hypothesis all symbols are tried; of all, those that cost least go on. Every
    hypothesis that ends narrows the beam by one. Unlike in the authors' program, no parent is tried that is not written
    yet; there, such a parent costs -log EPS = 23.
    """
    states, found = [TreeState(decoder, view) for view in views], list[WrittenTree]()
    device, cost_N = views[0].maps_bhwD.device, states[0].state_1Nn.new_zeros(1)
    written_3NS = torch.full((3, 1, 1), decoder.root, device=device)  # symbols, parents, relations
    for _ in range(max_len):
        parent_NS = torch.stack([state.seek_parents(written_3NS[0, :, -1]) for state in states]).mean(0)
        parent_NP, entry_NP = parent_NS.topk(min(tries, parent_NS.shape[1]))
        rows_R = torch.arange(len(cost_N), device=device).repeat_interleave(entry_NP.shape[1])
        entry_R = entry_NP.flatten()
        scores = [state.seek_symbols(rows_R, written_3NS[0, rows_R, entry_R]) for state in states]
        symbol_RV, relation_R7 = (torch.stack(logits).mean(0) for logits in zip(*scores, strict=True))
        cost_RV = (cost_N[:, None] - parent_NP).flatten()[:, None] - symbol_RV
        cost_N, best_N = cost_RV.flatten().topk(min(beam_size - len(found), cost_RV.numel()), largest=False)
        tries_N, symbol_N = best_N // cost_RV.shape[1], best_N % cost_RV.shape[1]
        new_3N = torch.stack((symbol_N, entry_R[tries_N], relation_R7.argmax(1)[tries_N]))
        written_3NS = torch.cat((written_3NS[:, rows_R[tries_N]], new_3N[..., None]), dim=2)
        ends_N = symbol_N == END
        for row in ends_N.nonzero()[:, 0].tolist():
            symbols, parents, relations = map(tuple, written_3NS[:, row, 1:].tolist())
            found.append(WrittenTree(symbols, parents, relations, cost_N[row].item()))
        open_N = (~ends_N).nonzero()[:, 0]
        if not len(open_N) or len(found) == beam_size:
            break
        for state in states:
            state.write(tries_N[open_N])
        cost_N, written_3NS = cost_N[open_N], written_3NS[:, open_N]
    return found


class TreeSearch:
    """Reads images with a network in evaluation mode, of which it keeps a copy. Raises ValueError in training mode."""

    def __init__(self, model: DenseWAPTD) -> None:
        self.model = frozen(model)

    @torch.inference_mode()
    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each image, best first; an image has none if no tree ends within `max_len` steps.

        Scores are log-probability / length ** alpha; the length counts symbols and the end, not braces, ^ and _. A tree
        that LaTeX cannot say is read as nothing. Raises ValueError for a temperature, for early stopping and for
        reading right to left.
        """
        refuse("DenseWAP-TD", options)
        if options.temperature != 1:
            raise ValueError("DenseWAP-TD's search has no temperature; leave it at 1")
        features, found, limits = [self.model.encode(*view) for view in views], [], (options.beam_size, options.max_len)
        with torch.autocast(views[0][0].device.type, enabled=False):  # as in training
            for image in range(len(views[0][0])):
                trees = tree_search(self.model.decoder, [alone(view, image) for view in features], *limits)
                hypotheses = (self._hypothesis(tree, options.alpha) for tree in trees)
                found.append(sorted(hypotheses, key=lambda hypothesis: hypothesis.score, reverse=True))
        return found

    def _hypothesis(self, tree: WrittenTree, alpha: float) -> Hypothesis:
        latex, score = to_latex(tree.nodes(self.model.symbols)), -tree.cost / len(tree.symbols) ** alpha
        ids = () if ILLEGAL in latex else tuple(self.model.vocabulary.encode(latex))
        return Hypothesis(ids, score, score, 0.0, "l2r", len(tree.symbols))


def alone(features: Features, image: int) -> Features:
    """The features of one image of a batch, without padding."""
    seen_hw = ~features.mask_bhw[image]
    h, w = int(seen_hw.any(1).sum()), int(seen_hw.any(0).sum())
    one = slice(image, image + 1)
    return Features(features.maps_bhwD[one, :h, :w], features.mask_bhw[one, :h, :w], features.state_bn[one])
