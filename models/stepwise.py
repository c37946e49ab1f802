"""A network as two functions: `encode` an image once, then take a `step` for more words of its hypotheses.

Both are modules of tensors alone, so that they can be exported; they are made of the modules that train. What a search
carries along is in the arguments: `memory`, the same for all hypotheses of an image; `state`, whose first dimension is
the hypothesis, so that a search selects them by indexing; and `cache`, of all words that were read, which stay where
they are: hypotheses share the words that they have in common.

Names carry shapes: H x W pixels, h x w feature cells, L = h * w, X words that are read, P words before them, S = P + X,
J layers, A heads, E = D / A, D model width, C coverage channels, V classes.
"""

import typing
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from hmerbench.models import densewap
from hmerbench.models.comer import CoMER
from hmerbench.models.coverage import AttentionRefinement
from hmerbench.models.decoder import Attention, Trace, lowest
from hmerbench.models.densewap import END, START, DenseWAP
from hmerbench.models.inference.reading import cast
from hmerbench.models.inference.searcher import frozen
from hmerbench.models.network import Network
from hmerbench.models.settings import DenseNetSettings
from hmerbench.models.vocab import EOS, PAD, SOS

Shape = tuple[int | str, ...]  # of one hypothesis; "h" and "w" stand for the image's cells


class Stepwise(nn.Module):
    """A network in evaluation mode that decodes word by word.

    `encode(image_11HW, size_2)` gives the memory and what of the first state is not zeros; `size_2` is the image's
    height and width within its padding. `step(words_X, *before, *memory, *state)` gives log-probabilities [X, V] of the
    word after each, where the network looked [X, h, w], the states after them and the cache with them.
    """

    memory: tuple[str, ...]  # names of what `encode` returns
    state: dict[str, Shape | None]  # first state by name: zeros of a shape, or None where `encode` returns it, too
    cache: dict[str, Shape]  # of all words, by name; 0 stands for their number
    before: tuple[str, ...] = ("rows",)  # names of what tells words which are before them
    starts: dict[str, int]  # class that begins a hypothesis, by direction; it ends with the class in `ends`
    ends: dict[str, int]
    offset: int = 0  # of a word in the vocabulary and its class

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.vocabulary, self.stride = network.vocabulary, typing.cast(DenseNetSettings, network.settings).stride

    def encode(self, image_11HW: Tensor, size_2: Tensor) -> tuple[Tensor, ...]:
        """Memory of one image, ink 1 on 0, and the first state."""
        raise NotImplementedError

    def step(self, words_X: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """Log-probabilities, attention, the next states and the cache."""
        raise NotImplementedError


def stepwise(network: Network) -> Stepwise:
    """The network as `encode` and `step`. Raises ValueError for one that has no such form."""
    if network.settings.stepwise is None:
        raise ValueError(f"{network.settings.network} has no `stepwise` in its settings; give a run of another network")
    return resolve_name(network.settings.stepwise)(network).eval()


def padding(image_11HW: Tensor, size_2: Tensor) -> Tensor:
    """Which pixels lie outside of an image of that size: [1, H, W], True = padding."""
    y_H, x_W = (torch.arange(side) for side in image_11HW.shape[2:])
    return ((y_H >= size_2[0])[:, None] | (x_W >= size_2[1]))[None]


def inside(x_1hw: Tensor, size_2: Tensor, stride: int) -> Tensor:
    """The cells of the image without its padding, where nothing is ever attended to."""
    h, w = ((size_2 + stride - 1) // stride).tolist()
    for cells, padded in zip((h, w), x_1hw.shape[1:3], strict=True):
        torch._check(cells >= 1)
        torch._check(cells <= padded)
    return x_1hw[:, :h, :w]


class StepwiseCoMER(Stepwise):
    """CoMER, its baseline and BTTR. The state is the coverage of every layer but the first, the cache keys and values.

    Words that are read together may be of one hypothesis: whole ones are read in one step.
    """

    before = ("rows", "places", "visible", "earlier")

    def __init__(self, network: CoMER) -> None:
        super().__init__(network)
        self.network = network = frozen(network)
        cast(network.decoder, torch.float32)
        settings = network.settings
        J, A = settings.num_decoder_layers, settings.nhead
        self.memory = tuple(f"{name}{j}" for j in range(J) for name in ("keys", "values"))
        self.state, self.cache = {}, {f"cache{j}": (2, A, 0, settings.d_model // A) for j in range(J)}
        if (arm := network.decoder.model.arm) is not None:
            self.state = {f"coverage{j}": (arm.conv.in_channels, "h", "w") for j in range(1, J)}
        begin = {"l2r": SOS, "r2l": EOS}
        self.starts = {direction: begin[direction] for direction in settings.directions if direction in begin}
        self.ends = {direction: SOS + EOS - start for direction, start in self.starts.items()}

    def encode(self, image_11HW: Tensor, size_2: Tensor) -> tuple[Tensor, ...]:
        """Keys [A, E, h, w] and values [A, L, E] of each layer's cross-attention."""
        features_1hwd, _ = self.network.encode(image_11HW, padding(image_11HW, size_2))
        features_1hwd = inside(features_1hwd, size_2, self.stride)
        memory = self.network.decoder.model.remember(features_1hwd.flatten(1, 2))
        cells = features_1hwd.shape[1:3]
        return tuple(x for keys, values in memory for x in (keys[0].mT.unflatten(-1, cells), values[0]))

    def step(self, words_X: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """More words, all of one group. Given are, before the memory: which of N beginnings each word continues; of
        each beginning, how many words it has, which of the cache it sees [N, P] and which of these words are part of
        it [N, X], as 0 and 1."""
        cache, trace = _Words(len(self.cache), words_X, *given), Trace()
        logits_XV = self.network.step(words_X, cache, trace)
        looked_Xhw = trace[-1].attention.mean(0).unflatten(-1, cache.cells)
        return logits_XV.log_softmax(-1), looked_Xhw, *cache.coverage, *cache.words


class _Words:
    """What words of one image find before them (`decoder.Cache`, without its groups), and what those after them will.

    Energies and attention are [A, X, L].
    """

    def __init__(
        self,
        layers: int,
        words_X: Tensor,
        rows_X: Tensor,
        places_N: Tensor,
        visible_NP: Tensor,
        earlier_NX: Tensor,
        *given: Tensor,  # the memory, coverage of every layer but the first, the cache
    ) -> None:
        memory, state = given[: 2 * layers], given[2 * layers :]
        self.cells, self.bias_G11L = memory[0].shape[2:], torch.zeros(())  # there is no padding
        self.memory = [(memory[2 * j].flatten(2).mT, memory[2 * j + 1]) for j in range(layers)]
        self.rows_X, self.place = rows_X, places_N.index_select(0, rows_X)
        self.earlier_NX, self.past_NChw, self.past_2APE = earlier_NX, state[:-layers], state[-layers:]
        number_X = torch.arange(words_X.shape[0])
        # a PAD inside a hypothesis is hidden from itself and from all later words, as in the authors' code
        visible_XX = ((earlier_NX.index_select(0, rows_X) > 0) | (number_X[:, None] == number_X)) & (words_X != PAD)
        self.bias_XS = torch.cat((lowest(visible_NP.index_select(0, rows_X) == 0), lowest(~visible_XX)), dim=1)
        self.words, self.coverage = list[Tensor](), list[Tensor]()

    def attend(self, j: int, attn: Attention, x_XD: Tensor) -> Tensor:
        query_X1AE, new_X2AE = attn.project(x_XD).split((1, 2), dim=1)
        self.words.append(torch.cat((self.past_2APE[j], new_X2AE.permute(1, 2, 0, 3)), dim=2))
        key_1ASE, value_1ASE = self.words[-1].split(1)
        query_AXE = query_X1AE.squeeze(1).transpose(0, 1) * query_X1AE.shape[-1] ** -0.5
        return attn.read(attn.weigh(attn.energies(query_AXE, key_1ASE.squeeze(0), self.bias_XS)), value_1ASE.squeeze(0))

    def refine(self, j: int, arm: AttentionRefinement, seen_CXL: Tensor) -> Tensor:
        seen_XCL, past_NChw = seen_CXL.transpose(0, 1), self.past_NChw[j - 1]
        covered_NChw = torch.addmm(past_NChw.flatten(1), self.earlier_NX, seen_XCL.flatten(1)).view_as(past_NChw)
        self.coverage.append(covered_NChw.index_select(0, self.rows_X) + seen_XCL.unflatten(-1, self.cells))
        refinement_NAhw = arm.proj(torch.relu(arm.conv(covered_NChw)))  # folded; laid out as convolutions are exported
        return refinement_NAhw.flatten(2).index_select(0, self.rows_X).transpose(0, 1)


class StepwiseDenseWAP(Stepwise):
    """DenseWAP. The state is that of the GRUs, and the sum of all attention before."""

    memory = densewap.Memory._fields

    def __init__(self, network: DenseWAP) -> None:
        super().__init__(network)
        self.network = network
        self.state, self.cache = {"state": None, "coverage": ("h", "w")}, {}
        self.starts, self.ends, self.offset = {"l2r": START}, {"l2r": END}, EOS

    def encode(self, image_11HW: Tensor, size_2: Tensor) -> tuple[Tensor, ...]:
        """All that attention needs at every step, and the first state [1, n]."""
        features = self.network.encode(image_11HW, padding(image_11HW, size_2))
        maps_1hwD, mask_1hw = (inside(x, size_2, self.stride) for x in (features.maps_bhwD, features.mask_bhw))
        features = features._replace(maps_bhwD=maps_1hwD, mask_bhw=mask_1hw)
        memory, state_11n, _ = self.network.decoder.begin(features)
        return *memory, state_11n[0]

    def step(self, words_X: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """One more word of each hypothesis."""
        rows_X, *memory, state_Nn, past_Nhw = given
        state_Xn, past_Xhw = (x.index_select(0, rows_X) for x in (state_Nn, past_Nhw))
        cache, trace = densewap.Cache(densewap.Memory(*memory), state_Xn[None], past_Xhw[None]), list[densewap.Step]()
        logits_1XV = self.network.step(words_X[None], cache, trace)
        return logits_1XV[0].log_softmax(-1), trace[0].attention_bMhw[0], cache.state_bMn[0], cache.past_bMhw[0]
