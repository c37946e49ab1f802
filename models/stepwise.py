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

from hmerbench.models.comer import CoMER
from hmerbench.models.coverage import AttentionRefinement
from hmerbench.models.decoder import Attention, Trace, lowest
from hmerbench.models.densewap import END, START, DenseWAP, Memory
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


def padding(size_2: Tensor, maps_1chw: Tensor, stride: int) -> Tensor:
    """Which cells of feature maps lie outside of an image of that size: [h, w], True = padding."""
    y_h, x_w = (torch.arange(side) * stride for side in maps_1chw.shape[2:])
    return (y_h >= size_2[0])[:, None] | (x_w >= size_2[1])


class StepwiseCoMER(Stepwise):
    """CoMER, its baseline and BTTR. The state holds keys and values of all words, and the coverage of every layer but
    the first."""

    memory = ("keys", "values", "hidden")

    def __init__(self, network: CoMER) -> None:
        super().__init__(network)
        network, settings = frozen(network), network.settings
        self.encoder, self.decoder = network.encoder, network.decoder
        cast(self.decoder, torch.float32)
        J, A = settings.num_decoder_layers, settings.nhead
        self.state = {"cache": (J, 2, A, 0, settings.d_model // A)}
        if (arm := self.decoder.model.arm) is not None:
            self.state["coverage"] = (J - 1, arm.conv.in_channels, "h", "w")
        begin = {"l2r": SOS, "r2l": EOS}
        self.starts = {direction: begin[direction] for direction in settings.directions if direction in begin}
        self.ends = {direction: SOS + EOS - start for direction, start in self.starts.items()}

    def encode(self, image_11HW: Tensor, size_2: Tensor) -> tuple[Tensor, ...]:
        """Keys and values [J, A, L, E] of every layer's cross-attention; what hides padding [h, w]."""
        encoder, maps_1chw = self.encoder, self.encoder.model(image_11HW)
        hidden_hw = padding(size_2, maps_1chw, self.stride)
        features_1hwd = encoder.feature_proj(maps_1chw).permute(0, 2, 3, 1)
        memory_1LD = encoder.add_position(features_1hwd, hidden_hw[None]).flatten(1, 2)
        keys, values = (torch.cat(parts) for parts in zip(*self.decoder.model.remember(memory_1LD), strict=True))
        return keys, values, lowest(hidden_hw)

    def step(self, words_NT: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """One more word [N, T - 1] of each hypothesis; their image is the only group."""
        keys_JALE, values_JALE, hidden_hw, past_NJ2ASE, *coverage = given
        mask_1hw, trace = (hidden_hw < 0)[None], Trace()
        state = _State(past_NJ2ASE, coverage[0] if coverage else None, lowest(words_NT == PAD), mask_1hw)
        x_1ND = self.decoder.embed(words_NT[None, :, -1], torch.full_like(words_NT[:, -1], words_NT.shape[1] - 1))
        memory = [*zip(keys_JALE.split(1), values_JALE.split(1), strict=True)]
        x_1ND = self.decoder.model(x_1ND, memory, hidden_hw.flatten(), state, trace)
        looked_Nhw = trace[-1].attention[0].mean(0).unflatten(-1, hidden_hw.shape)
        after = [torch.stack(parts, dim=1) for parts in (state.words, state.coverage) if parts]
        return self.decoder.proj(x_1ND)[0].log_softmax(-1), looked_Nhw, *after


class _State:
    """What the words of N hypotheses find before them (`decoder.Earlier`), and what the next ones will."""

    def __init__(self, past_NJ2ASE: Tensor, past_NJChw: Tensor | None, hidden_NT: Tensor, mask_1hw: Tensor) -> None:
        self.past_NJ2ASE, self.past_NJChw, self.mask_1hw = past_NJ2ASE, past_NJChw, mask_1hw
        self.hidden_N11T = hidden_NT[:, None, None]
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

    memory = Memory._fields

    def __init__(self, network: DenseWAP) -> None:
        super().__init__(network)
        self.encoder, self.decoder = network.encoder, network.decoder
        self.state = {"state": None, "coverage": ("h", "w")}
        self.starts, self.ends, self.offset = {"l2r": START}, {"l2r": END}, EOS

    def encode(self, image_11HW: Tensor, size_2: Tensor) -> tuple[Tensor, ...]:
        """All that attention needs at every step, and the first state [1, n]."""
        maps_1Dhw = self.encoder.net(image_11HW)
        hidden_hw = padding(size_2, maps_1Dhw, self.stride)
        memory, state_11n, _ = self.decoder.begin(self.encoder.features(maps_1Dhw, hidden_hw[None]))
        return *memory, state_11n[0]

    def step(self, words_NT: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """One more word [N, T - 1] of each hypothesis."""
        *memory, state_Nn, past_Nhw = given
        previous_1Nm = self.decoder.embed(words_NT[None, :, -1])
        products_1N3n = self.decoder.cell1.input(previous_1Nm)
        step = self.decoder.step(Memory(*memory), products_1N3n, state_Nn[None], past_Nhw[None])
        logits_1NV = self.decoder.scores(step.context_bMD, step.state_bMn, previous_1Nm)
        return logits_1NV[0].log_softmax(-1), step.attention_bMhw[0], step.state_bMn[0], step.past_bMhw[0]
