"""Approximate joint search (CoMER, section 3.5, after BTTR, section 3.4).

Beam search reads every image in both directions; what it finds in one direction is rated by the other, too.
Names carry shapes: b images, G groups (a group = one image read in one direction), M beams of a group, N any
number of hypotheses, T steps, S word slots, L = h * w feature cells, H heads, E = D / H, J layers, C coverage
channels, V classes. The beams of a group read one memory, so they take the place of the decoder's step axis.
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

SHARE_TO_DROP = 1 / 8  # finished groups are dropped as soon as they are this share of all
# at once are rated at most so many hypotheses * steps, and so many of these times feature cells
MOST_WORDS, MOST_WORD_CELLS = 2**10, 2**16
NEVER = float("-inf")
View = tuple[Tensor, Tensor]  # images [b,1,H,W] and mask [b,H,W], True = padding


@dataclass
class Found:
    """N = G * M hypotheses as tensors; their tokens in the order in which they were found, then PAD."""

    tokens_NT: Tensor
    length_N: Tensor  # tokens, without start and end
    forward_N: Tensor
    image_N: Tensor
    leftward_N: Tensor  # True: found right to left


@torch.inference_mode()
def joint_search(
    model: CoMER | FoldedNetwork,
    images_b1HW: Tensor,
    mask_bHW: Tensor,
    options: SearchOptions | None = None,
    other_sizes: Sequence[View] = (),
) -> list[list[Hypothesis]]:
    """The hypotheses of each image, best first; of equal ones the left-to-right one.

    Images and mask (True = padding) as for `CoMER.encode`; whoever searches batch after batch folds the model once.
    Given the same images in other sizes, too, it reads all at once, and every log-probability is the mean over the
    sizes. With direction l2r or r2l there is no second rating and the score is `forward`. ValueError for a model in
    training mode or a beam too wide for it.
    """
    options, network = options or SearchOptions(), model if isinstance(model, FoldedNetwork) else FoldedNetwork(model)
    if 2 * options.beam_size > network.vocab_size:
        classes = network.vocab_size
        raise ValueError(f"beam_size must be at most half of the {classes} classes, not {options.beam_size}")
    with network.before((images_b1HW, mask_bHW), *other_sizes) as readers:
        found = BeamSearch(readers, options).run()
        both = options.direction == "both"
        reverse_N = rate(readers, found, options) if both else torch.zeros_like(found.forward_N)
    results: list[list[Hypothesis]] = [[] for _ in images_b1HW]
    columns = (found.tokens_NT, found.length_N, found.image_N, found.leftward_N, found.forward_N)
    for tokens, length, image, leftward, forward, reverse, score in zip(
        *(column.tolist() for column in (*columns, reverse_N, found.forward_N + reverse_N)), strict=True
    ):
        ids = tuple(tokens[:length][::-1] if leftward else tokens[:length])
        results[image].append(Hypothesis(ids, score, forward, reverse, "r2l" if leftward else "l2r"))
    for hypotheses in results:
        hypotheses.sort(key=lambda h: h.score, reverse=True)  # stable: the first of equal ones stays first
    return results


@dataclass
class Groups:
    """Where the search of each group stands; the first dimension of every field is G."""

    number_G: Tensor  # its place among all groups: left-to-right ones first, then by image
    open_G: Tensor  # False: nothing better can be found
    tokens_GTM: Tensor  # every token ever taken …
    parents_GTM: Tensor  # … and the beam it follows; hypotheses are read off backwards at the end
    sums_GM: Tensor  # log-probability of the beams that go on
    scores_GM: Tensor  # closed hypotheses, best first: score …
    ends_GM: Tensor  # … and length * M + last beam (start counted, end not)

    def select(self, index_g: Tensor) -> "Groups":
        """Some of the groups."""
        return Groups(*(getattr(self, field.name)[index_g] for field in fields(self)))

    @classmethod
    def collect(cls, parts: list["Groups"]) -> "Groups":
        """All groups in the order of their numbers."""
        whole = cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))
        return whole.select(whole.number_G.argsort())


class BeamSearch:
    """Beam search of all groups at once, left-to-right groups first (rules: those of the authors' code).

    Of the 2 M best continuations of a group, an end token among the first M closes a hypothesis (among the
    rest it is dropped), and the best M other tokens go on. Every group keeps its M best closed hypotheses,
    scored by log-probability / length ** alpha.
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
        sums_GM[:, 0] = 0  # all beams of a group start alike, so only one of them may go on
        open_G, ends_GM = torch.ones_like(number_G, dtype=torch.bool), torch.full_like(tokens_GTM[:, 0], M)
        parents_GTM = torch.zeros_like(tokens_GTM)
        self.groups = Groups(number_G, open_G, tokens_GTM, parents_GTM, sums_GM, scores_GM, ends_GM)

    def run(self) -> Found:
        """Every group's closed hypotheses, and those that were cut off where a group is still open at the end."""
        options, groups, left = self.options, self.groups, list[Groups]()
        tokens_GM, end_G1 = self.start_G[:, None].repeat(1, options.beam_size), SOS + EOS - self.start_G[:, None]
        for length in range(1, options.max_len):
            logp_GMV = log_probabilities((decoder.feed(tokens_GM) for decoder in self.decoders), options)
            tokens_GM, parents_GM = self._walk(groups, groups.sums_GM[..., None] + logp_GMV, end_G1, length)
            groups.tokens_GTM[:, length], groups.parents_GTM[:, length] = tokens_GM, parents_GM
            running = int(groups.open_G.sum())  # the one wait of a step for the device
            if running == 0:
                break
            for decoder in self.decoders:
                decoder.reorder(parents_GM)
            finished = len(groups.open_G) - running
            if self.decoders[0].full or finished >= SHARE_TO_DROP * len(groups.open_G):
                left.append(groups.select((~groups.open_G).nonzero()[:, 0]))
                keep_G = groups.open_G.nonzero()[:, 0]
                for decoder in self.decoders:
                    decoder.tidy(keep_G)
                groups, tokens_GM, end_G1 = groups.select(keep_G), tokens_GM[keep_G], end_G1[keep_G]
        else:
            beams_GM = torch.arange(options.beam_size, device=tokens_GM.device).expand_as(tokens_GM)
            self._close(groups, groups.sums_GM, groups.open_G[:, None], beams_GM, options.max_len)
        return self._read_off(Groups.collect([*left, groups]))

    def _walk(self, groups: Groups, sums_GMV: Tensor, end_G1: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Closes hypotheses and finished groups; tokens and parents [G, M] of the beams that go on."""
        _, M, V = sums_GMV.shape
        sums, index = sums_GMV.flatten(1).topk(2 * M)  # G and 2 M candidates, best first
        parents, tokens = index // V, index % V
        ending = tokens == end_G1  # at most M, one of each beam
        self._close(groups, sums[:, :M], ending[:, :M] & groups.open_G[:, None], parents[:, :M], length)
        onward = ending.byte().argsort(dim=1, stable=True)[:, :M]
        groups.sums_GM = sums.gather(1, onward)
        worst_G = groups.scores_GM[:, -1]
        if not self.options.early_stopping:  # M closed, of which none can be beaten by the authors' estimate
            groups.open_G &= worst_G < groups.sums_GM[:, 0] / length**self.options.alpha
        else:
            groups.open_G &= worst_G == NEVER
        return tokens.gather(1, onward), parents.gather(1, onward)

    def _close(self, groups: Groups, sums_GM: Tensor, ending_GM: Tensor, beams_GM: Tensor, length: int) -> None:
        """Offers hypotheses of one length, by their sums and last beams, to the M best of their groups."""
        M = self.options.beam_size
        scores = torch.where(ending_GM, sums_GM / length**self.options.alpha, NEVER)
        groups.scores_GM, kept = torch.cat((groups.scores_GM, scores), dim=1).topk(M)
        groups.ends_GM = torch.cat((groups.ends_GM, beams_GM + length * M), dim=1).gather(1, kept)

    def _read_off(self, groups: Groups) -> Found:
        """All closed hypotheses, by walking back from their last tokens."""
        M = self.options.beam_size
        tokens_TGM = torch.full_like(groups.tokens_GTM, PAD).transpose(0, 1).contiguous()
        beams_GM, last_GM = groups.ends_GM % M, groups.ends_GM // M - 1
        for t in range(int(last_GM.max()), 0, -1):
            inside = t <= last_GM
            tokens_TGM[t - 1] = groups.tokens_GTM[:, t].gather(1, beams_GM).masked_fill(~inside, PAD)
            beams_GM = torch.where(inside, groups.parents_GTM[:, t].gather(1, beams_GM), beams_GM)
        return Found(
            tokens_TGM.flatten(1).T.contiguous(),
            last_GM.flatten(),
            groups.scores_GM.flatten(),
            self.image_G.repeat_interleave(M),
            (self.start_G == EOS).repeat_interleave(M),
        )


def log_probabilities(logits: Iterable[Tensor], options: SearchOptions) -> Tensor:
    """Of the next token, from the logits [..., V] at every size: their mean, so a hypothesis has its mean score."""
    return torch.stack([(at_one_V / options.temperature).log_softmax(-1) for at_one_V in logits]).mean(0)


def rate(readers: Sequence[Reader], found: Found, options: SearchOptions) -> Tensor:
    """Log-probability / steps ** alpha [N] of every hypothesis in the direction it was not found in.

    Of an image, hypotheses of similar length are read together, as many as fit: what they need grows with the square
    of their words.
    """
    b, M, device = len(readers[0].mask_bL), options.beam_size, found.forward_N.device
    start_N, steps_N = torch.where(found.leftward_N, SOS, EOS), found.length_N + 1
    back_NT = found.length_N[:, None] - 1 - torch.arange(found.tokens_NT.shape[1], device=device)
    reversed_NT = found.tokens_NT.gather(1, back_NT.clamp(min=0)).masked_fill(back_NT < 0, PAD)
    inputs_NT = torch.cat((start_N[:, None], reversed_NT[:, :-1]), dim=1)
    outputs_NT = torch.where(back_NT == -1, SOS + EOS - start_N[:, None], reversed_NT)
    reverse_N = torch.zeros_like(found.forward_N)
    most = min(MOST_WORD_CELLS // max(reader.mask_bL.shape[1] for reader in readers), MOST_WORDS)
    index_bn = torch.arange(len(steps_N), device=device).view(-1, b, M).transpose(0, 1).flatten(1)
    index_bn = index_bn.gather(1, found.forward_N[index_bn].argsort(dim=1, descending=True))
    index_bn = index_bn.gather(1, steps_N[index_bn].argsort(dim=1, descending=True, stable=True))
    for image, (index_n, lengths) in enumerate(zip(index_bn, steps_N[index_bn].tolist(), strict=True)):
        first = 0
        while first < len(lengths):
            T = lengths[first]
            rows_R = index_n[first : first + max(1, most // T)]
            logits = (reader.read(image, inputs_NT[rows_R, :T], steps_N[rows_R]) for reader in readers)
            logp_RTV, outputs_RT = log_probabilities(logits, options), outputs_NT[rows_R, :T]
            padding_RT = outputs_RT == PAD
            logp_RT = logp_RTV.gather(-1, outputs_RT[..., None])[..., 0].masked_fill(padding_RT, 0)
            reverse_N[rows_R] = logp_RT.sum(1) / (~padding_RT).sum(1, dtype=logp_RT.dtype) ** options.alpha
            first += len(rows_R)
    return reverse_N
