"""Approximate joint search (CoMER, section 3.5, after BTTR, section 3.4).

Beam search reads every image in both directions; the hypotheses of each direction are rescored by the other.

Names carry shapes: b images, G groups (a group = one image read in one direction), M beams of a group, N hypotheses, R
of them rescored together, T steps, L = h * w feature cells, V classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from models.comer import CoMER
from models.inference.folded_decoder import FoldedNetwork, Reader
from models.inference.incremental import IncrementalDecoder
from models.inference.options import Hypothesis, SearchOptions
from models.vocab import EOS, PAD, SOS

SHARE_TO_DROP = 1 / 8  # finished groups are dropped as soon as they make up this share
# limits on what is rescored at once: hypotheses * steps, and that times feature cells
MAX_WORDS, MAX_WORD_CELLS = 2**10, 2**16
NEVER = float("-inf")
View = tuple[Tensor, Tensor]  # images [b,1,H,W] and mask [b,H,W], True = padding


@dataclass
class Hypotheses:
    """N = G * M hypotheses as tensors; tokens in the order of their search, then PAD."""

    tokens_NT: Tensor
    length_N: Tensor  # tokens, without start and end
    forward_N: Tensor
    image_N: Tensor
    leftward_N: Tensor  # True: searched right to left


@torch.inference_mode()
def joint_search(
    model: CoMER | FoldedNetwork,
    images_b1HW: Tensor,
    mask_bHW: Tensor,
    options: SearchOptions | None = None,
    other_sizes: Sequence[View] = (),
) -> list[list[Hypothesis]]:
    """The hypotheses of each image, best first; in a tie left-to-right ones come first.

    Images and mask (True = padding) are as for `CoMER.encode`. To search several batches, pass a `FoldedNetwork`. Given
    `other_sizes` of the same images, all sizes are read together and every log-probability is the mean over them. With
    direction l2r or r2l nothing is rescored and the score is `forward`. Raises ValueError for a model in training mode
    or a beam that is too wide for it.
    """
    options = options or SearchOptions()
    network = model if isinstance(model, FoldedNetwork) else FoldedNetwork(model)
    if 2 * options.beam_size > network.vocab_size:
        classes = network.vocab_size
        raise ValueError(f"beam_size must be at most half of the {classes} classes, not {options.beam_size}")
    views = ((images_b1HW, mask_bHW), *other_sizes)
    with torch.autocast(images_b1HW.device.type, enabled=False):  # nothing is cast again
        readers = [Reader(network.decoder, *network.encoder(*view)) for view in views]
        found = BeamSearch(readers, options).run()
        both = options.direction == "both"
        reverse_N = rescore(readers, found, options) if both else torch.zeros_like(found.forward_N)
    results: list[list[Hypothesis]] = [[] for _ in images_b1HW]
    columns = (found.tokens_NT, found.length_N, found.image_N, found.leftward_N, found.forward_N)
    for tokens, length, image, leftward, forward, reverse, score in zip(
        *(column.tolist() for column in (*columns, reverse_N, found.forward_N + reverse_N)), strict=True
    ):
        ids = tuple(tokens[:length][::-1] if leftward else tokens[:length])
        results[image].append(Hypothesis(ids, score, forward, reverse, "r2l" if leftward else "l2r"))
    for hypotheses in results:
        hypotheses.sort(key=lambda h: h.score, reverse=True)  # stable
    return results


@dataclass
class Groups:
    """The state of each group; the first dimension of every field is G."""

    number_G: Tensor  # its index among all groups: left-to-right ones first, then by image
    open_G: Tensor  # False: the search is over
    tokens_GTM: Tensor  # the token of each beam at each step …
    parents_GTM: Tensor  # … and the beam it extends; hypotheses are traced back through both at the end
    sums_GM: Tensor  # log-probability of each beam
    scores_GM: Tensor  # complete hypotheses, best first: score …
    ends_GM: Tensor  # … and length * M + last beam; the length counts the start token, not the end token

    def select(self, index_g: Tensor) -> "Groups":
        """The groups with the given indices."""
        return Groups(*(getattr(self, field.name)[index_g] for field in fields(self)))

    @classmethod
    def collect(cls, parts: list["Groups"]) -> "Groups":
        """All groups, sorted by number."""
        whole = cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))
        return whole.select(whole.number_G.argsort())


class BeamSearch:
    """Beam search of all groups at once, left-to-right groups first, by the rules of the authors' code.

    Of the 2 M best continuations of a group, an end token among the first M completes a hypothesis (among the rest it
    is dropped), and the best M other tokens extend the beams. Every group keeps its M best complete hypotheses, scored
    by log-probability / length ** alpha.
    """

    def __init__(self, readers: Sequence[Reader], options: SearchOptions) -> None:
        b, device, M = len(readers[0].mask_bL), readers[0].mask_bL.device, options.beam_size
        starts = {"both": (SOS, EOS), "l2r": (SOS,), "r2l": (EOS,)}[options.direction]
        self.options = options
        self.image_G = torch.arange(b, device=device).repeat(len(starts))
        self.start_G = torch.tensor(starts, device=device).repeat_interleave(b)
        self.decoders = [IncrementalDecoder(reader, self.image_G, M) for reader in readers]
        number_G = torch.arange(len(self.image_G), device=device)
        tokens_GTM = torch.full((len(number_G), options.max_len, M), PAD, device=device)
        scores_GM = torch.full((len(number_G), M), NEVER, dtype=readers[0].decoder.stream, device=device)
        sums_GM = scores_GM.clone()
        sums_GM[:, 0] = 0  # all beams of a group start alike, so only one may be extended
        open_G, ends_GM = torch.ones_like(number_G, dtype=torch.bool), torch.full_like(tokens_GTM[:, 0], M)
        parents_GTM = torch.zeros_like(tokens_GTM)
        self.groups = Groups(number_G, open_G, tokens_GTM, parents_GTM, sums_GM, scores_GM, ends_GM)

    def run(self) -> Hypotheses:
        """The complete hypotheses of every group; groups still open at `max_len` add their unfinished beams."""
        options, groups, closed = self.options, self.groups, list[Groups]()
        tokens_GM, end_G1 = self.start_G[:, None].repeat(1, options.beam_size), SOS + EOS - self.start_G[:, None]
        for length in range(1, options.max_len):
            logp_GMV = log_probabilities((decoder.feed(tokens_GM) for decoder in self.decoders), options)
            tokens_GM, parents_GM = self._extend(groups, groups.sums_GM[..., None] + logp_GMV, end_G1, length)
            groups.tokens_GTM[:, length], groups.parents_GTM[:, length] = tokens_GM, parents_GM
            running = int(groups.open_G.sum())  # the only time a step waits for the device
            if running == 0:
                break
            for decoder in self.decoders:
                decoder.reorder(parents_GM)
            finished = len(groups.open_G) - running
            if self.decoders[0].full or finished >= SHARE_TO_DROP * len(groups.open_G):
                closed.append(groups.select((~groups.open_G).nonzero()[:, 0]))
                keep_G = groups.open_G.nonzero()[:, 0]
                for decoder in self.decoders:
                    decoder.compact(keep_G)
                groups, tokens_GM, end_G1 = groups.select(keep_G), tokens_GM[keep_G], end_G1[keep_G]
        else:
            beams_GM = torch.arange(options.beam_size, device=tokens_GM.device).expand_as(tokens_GM)
            self._add(groups, groups.sums_GM, groups.open_G[:, None], beams_GM, options.max_len)
        return self._trace_back(Groups.collect([*closed, groups]))

    def _extend(self, groups: Groups, sums_GMV: Tensor, end_G1: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Tokens and parents [G, M] of the extended beams; adds complete hypotheses and closes finished groups."""
        _, M, V = sums_GMV.shape
        sums, index = sums_GMV.flatten(1).topk(2 * M)  # G and 2 M candidates, best first
        parents, tokens = index // V, index % V
        ending = tokens == end_G1  # at most one per beam, so at most M
        self._add(groups, sums[:, :M], ending[:, :M] & groups.open_G[:, None], parents[:, :M], length)
        kept = ending.byte().argsort(dim=1, stable=True)[:, :M]
        groups.sums_GM = sums.gather(1, kept)
        worst_G = groups.scores_GM[:, -1]
        if self.options.early_stopping:
            groups.open_G &= worst_G == NEVER
        else:  # until, by the authors' estimate, no beam can beat any of M complete hypotheses
            groups.open_G &= worst_G < groups.sums_GM[:, 0] / length**self.options.alpha
        return tokens.gather(1, kept), parents.gather(1, kept)

    def _add(self, groups: Groups, sums_GM: Tensor, ending_GM: Tensor, beams_GM: Tensor, length: int) -> None:
        """Add the hypotheses that end here, given by their sums and last beams, to the M best of their groups."""
        M = self.options.beam_size
        scores = torch.where(ending_GM, sums_GM / length**self.options.alpha, NEVER)
        groups.scores_GM, kept = torch.cat((groups.scores_GM, scores), dim=1).topk(M)
        groups.ends_GM = torch.cat((groups.ends_GM, beams_GM + length * M), dim=1).gather(1, kept)

    def _trace_back(self, groups: Groups) -> Hypotheses:
        """All complete hypotheses, traced back from their last tokens."""
        M = self.options.beam_size
        tokens_TGM = torch.full_like(groups.tokens_GTM, PAD).transpose(0, 1).contiguous()
        beams_GM, last_GM = groups.ends_GM % M, groups.ends_GM // M - 1
        for t in range(int(last_GM.max()), 0, -1):
            inside = t <= last_GM
            tokens_TGM[t - 1] = groups.tokens_GTM[:, t].gather(1, beams_GM).masked_fill(~inside, PAD)
            beams_GM = torch.where(inside, groups.parents_GTM[:, t].gather(1, beams_GM), beams_GM)
        return Hypotheses(
            tokens_TGM.flatten(1).T.contiguous(),
            last_GM.flatten(),
            groups.scores_GM.flatten(),
            self.image_G.repeat_interleave(M),
            (self.start_G == EOS).repeat_interleave(M),
        )


def log_probabilities(logits: Iterable[Tensor], options: SearchOptions) -> Tensor:
    """Log-probabilities [..., V] of the next token: the mean over the image sizes, given the logits at each size."""
    return torch.stack([(logits_V / options.temperature).log_softmax(-1) for logits_V in logits]).mean(0)


def rescore(readers: Sequence[Reader], found: Hypotheses, options: SearchOptions) -> Tensor:
    """Log-probability / steps ** alpha [N] of every hypothesis in the direction opposite to its search.

    Hypotheses of one image and similar length are read together, as many as fit: memory grows with the square of their
    words.
    """
    b, M, device = len(readers[0].mask_bL), options.beam_size, found.forward_N.device
    start_N, steps_N = torch.where(found.leftward_N, SOS, EOS), found.length_N + 1
    back_NT = found.length_N[:, None] - 1 - torch.arange(found.tokens_NT.shape[1], device=device)
    reversed_NT = found.tokens_NT.gather(1, back_NT.clamp(min=0)).masked_fill(back_NT < 0, PAD)
    inputs_NT = torch.cat((start_N[:, None], reversed_NT[:, :-1]), dim=1)
    outputs_NT = torch.where(back_NT == -1, SOS + EOS - start_N[:, None], reversed_NT)
    reverse_N = torch.zeros_like(found.forward_N)
    max_words = min(MAX_WORD_CELLS // max(reader.mask_bL.shape[1] for reader in readers), MAX_WORDS)
    index_bn = torch.arange(len(steps_N), device=device).view(-1, b, M).transpose(0, 1).flatten(1)
    index_bn = index_bn.gather(1, found.forward_N[index_bn].argsort(dim=1, descending=True))
    index_bn = index_bn.gather(1, steps_N[index_bn].argsort(dim=1, descending=True, stable=True))
    for image, (index_n, lengths) in enumerate(zip(index_bn, steps_N[index_bn].tolist(), strict=True)):
        first = 0
        while first < len(lengths):
            T = lengths[first]
            rows_R = index_n[first : first + max(1, max_words // T)]
            logits = (reader.read(image, inputs_NT[rows_R, :T], steps_N[rows_R]) for reader in readers)
            logp_RTV, outputs_RT = log_probabilities(logits, options), outputs_NT[rows_R, :T]
            padding_RT = outputs_RT == PAD
            logp_RT = logp_RTV.gather(-1, outputs_RT[..., None])[..., 0].masked_fill(padding_RT, 0)
            reverse_N[rows_R] = logp_RT.sum(1) / (~padding_RT).sum(1, dtype=logp_RT.dtype) ** options.alpha
            first += len(rows_R)
    return reverse_N
