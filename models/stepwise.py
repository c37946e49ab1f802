"""A network as two functions: `encode` an image once, then take one `step` per word for all hypotheses of a search.

Both are modules of tensors alone, so that they can be exported; they are made of the modules that train. What a search
carries along is in the arguments: `memory`, the same for all hypotheses of an image, and `state`, whose first dimension
is the hypothesis, so that a search reorders it by indexing.

Names carry shapes: H x W pixels, h x w feature cells, L = h * w, N hypotheses, T words of each, start included, J
layers, A heads, E = D / A, D model width, C coverage channels, V classes.
"""

import typing

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
    height and width within its padding. `step(words_NT, *memory, *state)` gives log-probabilities [N, V] of the next
    word, where the network looked [N, h, w], and the state after it.
    """

    memory: tuple[str, ...]  # names of what `encode` returns
    state: dict[str, Shape | None]  # first state by name: zeros of a shape, or None where `encode` returns it, too
    starts: dict[str, int]  # class that begins a hypothesis, by direction; it ends with the class in `ends`
    ends: dict[str, int]
    offset: int = 0  # of a word in the vocabulary and its class

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.vocabulary, self.stride = network.vocabulary, typing.cast(DenseNetSettings, network.settings).stride

    def encode(self, image_11HW: Tensor, size_2: Tensor) -> tuple[Tensor, ...]:
        """Memory of one image, ink 1 on 0, and the first state."""
        raise NotImplementedError

    def step(self, words_NT: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """Log-probabilities, attention and the next state."""
        raise NotImplementedError


def stepwise(network: Network) -> Stepwise:
    """The network as `encode` and `step`. Raises ValueError for one that is not searched word by word."""
    for kind, made in ((CoMER, StepwiseCoMER), (DenseWAP, StepwiseDenseWAP)):
        if isinstance(network, kind):
            return made(network).eval()  # pyright: ignore[reportArgumentType]
    raise ValueError(f"{network.settings.network} is not searched word by word; give a run of another network")


def padding(image_11HW: Tensor, size_2: Tensor) -> Tensor:
    """Which pixels lie outside of an image of that size: [1, H, W], True = padding."""
    y_H, x_W = (torch.arange(side) for side in image_11HW.shape[2:])
    return ((y_H >= size_2[0])[:, None] | (x_W >= size_2[1]))[None]


class StepwiseCoMER(Stepwise):
    """CoMER, its baseline and BTTR. The state holds keys and values of all words, and the coverage of every layer but
    the first."""

    memory = ("keys", "values", "hidden")

    def __init__(self, network: CoMER) -> None:
        super().__init__(network)
        self.network = network = frozen(network)
        cast(network.decoder, torch.float32)
        settings = network.settings
        J, A = settings.num_decoder_layers, settings.nhead
        self.state = {"cache": (J, 2, A, 0, settings.d_model // A)}
        if (arm := network.decoder.model.arm) is not None:
            self.state["coverage"] = (J - 1, arm.conv.in_channels, "h", "w")
        begin = {"l2r": SOS, "r2l": EOS}
        self.starts = {direction: begin[direction] for direction in settings.directions if direction in begin}
        self.ends = {direction: SOS + EOS - start for direction, start in self.starts.items()}

    def encode(self, image_11HW: Tensor, size_2: Tensor) -> tuple[Tensor, ...]:
        """Keys and values [J, A, L, E] of every layer's cross-attention; what hides padding [h, w]."""
        features_1hwd, mask_1hw = self.network.encode(image_11HW, padding(image_11HW, size_2))
        memory = self.network.decoder.model.remember(features_1hwd.flatten(1, 2))
        keys_JALE, values_JALE = (torch.cat(parts) for parts in zip(*memory, strict=True))
        return keys_JALE, values_JALE, lowest(mask_1hw[0])

    def step(self, words_NT: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """One more word [N, T - 1] of each hypothesis; their image is the only group."""
        cache, trace = _Words(words_NT, *given), Trace()
        logits_1NV = self.network.step(words_NT[None, :, -1], cache, trace)
        looked_Nhw = trace[-1].attention[0].mean(0).unflatten(-1, cache.mask_1hw.shape[1:])
        after = [torch.stack(parts, dim=1) for parts in (cache.words, cache.coverage) if parts]
        return logits_1NV[0].log_softmax(-1), looked_Nhw, *after


class _Words:
    """What the words of N hypotheses find before them (`decoder.Cache`), and what the next ones will."""

    def __init__(
        self,
        words_NT: Tensor,
        keys_JALE: Tensor,
        values_JALE: Tensor,
        hidden_hw: Tensor,
        past_NJ2ASE: Tensor,
        past_NJChw: Tensor | None = None,
    ) -> None:
        self.memory = [*zip(keys_JALE.split(1), values_JALE.split(1), strict=True)]
        self.hidden_G11L, self.mask_1hw = hidden_hw.flatten(), (hidden_hw < 0)[None]
        self.place = torch.full_like(words_NT[:, -1], words_NT.shape[1] - 1)
        self.past_NJ2ASE, self.past_NJChw = past_NJ2ASE, past_NJChw
        self.hidden_N11T = lowest(words_NT == PAD)[:, None, None]
        self.words, self.coverage = list[Tensor](), list[Tensor]()

    def attend(self, j: int, attn: Attention, x_GXD: Tensor) -> Tensor:
        """To the words of each hypothesis."""
        x_N1D = x_GXD.transpose(0, 1)
        new_N2A1E = torch.stack(attn.project_memory(x_N1D), dim=1)
        self.words.append(torch.cat((self.past_NJ2ASE[:, j], new_N2A1E), dim=3))
        key_NATE, value_NATE = self.words[-1].unbind(1)
        weights_NA1T = attn.weigh(attn.energies(attn.project_query(x_N1D), key_NATE, self.hidden_N11T))
        return attn.read(weights_NA1T, value_NATE).transpose(0, 1)

    def refine(self, j: int, arm: AttentionRefinement, seen_GCXL: Tensor) -> Tensor:
        """Coverage by the words of each hypothesis."""
        assert self.past_NJChw is not None
        covered_NChw = self.past_NJChw[:, j - 1]
        self.coverage.append(covered_NChw + seen_GCXL[0].transpose(0, 1).unflatten(-1, self.mask_1hw.shape[1:]))
        return arm(covered_NChw.flatten(2).transpose(0, 1)[None], self.mask_1hw)


class StepwiseDenseWAP(Stepwise):
    """DenseWAP. The state is that of the GRUs, and the sum of all attention before."""

    memory = densewap.Memory._fields

    def __init__(self, network: DenseWAP) -> None:
        super().__init__(network)
        self.network = network
        self.state = {"state": None, "coverage": ("h", "w")}
        self.starts, self.ends, self.offset = {"l2r": START}, {"l2r": END}, EOS

    def encode(self, image_11HW: Tensor, size_2: Tensor) -> tuple[Tensor, ...]:
        """All that attention needs at every step, and the first state [1, n]."""
        features = self.network.encode(image_11HW, padding(image_11HW, size_2))
        memory, state_11n, _ = self.network.decoder.begin(features)
        return *memory, state_11n[0]

    def step(self, words_NT: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """One more word [N, T - 1] of each hypothesis."""
        *memory, state_Nn, past_Nhw = given
        cache, trace = densewap.Cache(densewap.Memory(*memory), state_Nn[None], past_Nhw[None]), list[densewap.Step]()
        logits_1NV = self.network.step(words_NT[None, :, -1], cache, trace)
        return logits_1NV[0].log_softmax(-1), trace[0].attention_bMhw[0], cache.state_bMn[0], cache.past_bMhw[0]
