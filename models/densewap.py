"""DenseWAP: a DenseNet, and a GRU that attends with coverage (Zhang, Du, Dai, ICPR 2018).

It follows the PyTorch port of the authors' group (jmwang66/WAP-implemented-by-Pytorch), whose cells and attention
DenseWAP-TD shares: coverage is the sum of all earlier attention maps, convolved. Class 0 ends a formula; nothing starts
it.

Names carry shapes: b images, M hypotheses of an image (1 in training), h x w feature cells, L = h * w, D feature
channels, A attention channels, n state size, m embedding size, T steps, V classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.decoder import lowest
from hmerbench.models.densenet import DenseNet
from hmerbench.models.layers import Dropout, float32
from hmerbench.models.network import NO_WORD, AttentionMaps, Network
from hmerbench.models.settings import RecurrentSettings, WAPSettings
from hmerbench.models.vocab import EOS, Vocabulary

START, END = -1, 0  # START is no class; zeros stand for its embedding


class Features(NamedTuple):
    """What the encoder hands to a decoder."""

    maps_bhwD: Tensor
    mask_bhw: Tensor  # True = padding
    state_bn: Tensor  # the decoder's first state


class Encoder(nn.Module):
    """A DenseNet without outer norms, and the first state of the decoder from the mean of its features."""

    def __init__(self, c: RecurrentSettings) -> None:
        super().__init__()
        self.net = DenseNet(c, outer_norms=False)
        self.start = nn.Linear(self.net.out_channels, c.hidden)

    def forward(self, images_b1HW: Tensor, mask_bHW: Tensor) -> Features:
        """Features of images (ink 1, background and padding 0); mask True = padding."""
        maps_bhwD = self.net(images_b1HW).permute(0, 2, 3, 1).contiguous()
        mask_bhw = mask_bHW[:, :: self.net.stride, :: self.net.stride]
        valid_bhw1 = (~mask_bhw)[..., None].to(maps_bhwD.dtype)
        mean_bD = (maps_bhwD * valid_bhw1).sum((1, 2)) / valid_bhw1.sum((1, 2)).clamp(min=1)
        return Features(maps_bhwD, mask_bhw, torch.tanh(self.start(mean_bD)))


class GRUCell(nn.Module):
    """A gated recurrent unit whose update gate keeps the old state and whose reset gate multiplies the product U h.

    That is torch's GRUCell, but with one set of biases: on the products of the input, or on those of the state.
    """

    def __init__(self, inputs: int, states: int, *, state_bias: bool = False) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, 3 * states, bias=not state_bias)  # reset, update, candidate
        self.state = nn.Linear(states, 3 * states, bias=state_bias)

    def forward(self, products_x3n: Tensor, state_xn: Tensor) -> Tensor:
        """The next state, given `self.input` of the input, which can be computed for many steps at once."""
        n = state_xn.shape[-1]
        inner_x3n = self.state(state_xn)
        gates_x2n = torch.sigmoid(products_x3n[..., : 2 * n] + inner_x3n[..., : 2 * n])
        reset_xn, update_xn = gates_x2n.chunk(2, dim=-1)
        candidate_xn = torch.tanh(torch.addcmul(products_x3n[..., 2 * n :], reset_xn, inner_x3n[..., 2 * n :]))
        return torch.lerp(candidate_xn, state_xn, update_xn)


class Memory(NamedTuple):
    """What attention needs of the features at every step."""

    maps_bLD: Tensor
    keys_b1LA: Tensor
    bias_b1L: Tensor  # added to energies: 0 in image cells, the lowest float32 at padding
    kernel_KA: Tensor  # from a window of K cells of coverage to attention channels


class CoverageAttention(nn.Module):
    """Additive attention that sees, through a wide convolution, the sum of the attention before."""

    def __init__(self, features: int, c: RecurrentSettings) -> None:
        super().__init__()
        self.key = nn.Linear(features, c.attention)
        self.query = nn.Linear(c.hidden, c.attention, bias=False)
        kernel = c.coverage_kernel
        self.coverage = nn.Conv2d(1, c.coverage_channels, kernel, padding=kernel // 2, bias=False)
        self.mix = nn.Linear(c.coverage_channels, c.attention)
        self.energy = nn.Linear(c.attention, 1)

    def remember(self, maps_bhwD: Tensor, mask_bhw: Tensor) -> Memory:
        """All that is the same at every step. The convolution and the layer after it are one product of windows."""
        maps_bLD, mask_b1L = maps_bhwD.flatten(1, 2), mask_bhw.flatten(1)[:, None]
        keys_b1LA = (self.key(maps_bLD) + self.mix.bias)[:, None]
        kernel_KA = self.coverage.weight.flatten(1).t() @ self.mix.weight.t()
        return Memory(maps_bLD, keys_b1LA, lowest(mask_b1L), kernel_KA)

    def cover(self, memory: Memory, past_bMhw: Tensor) -> Tensor:
        """Projected features plus convolved past attention, which no state changes: [b, M, L, A]."""
        kernel, (k, _) = memory.kernel_KA, self.coverage.kernel_size
        padded = F.pad(past_bMhw.to(kernel.dtype), (k // 2,) * 4)
        windows_bMLK = padded.unfold(2, k, 1).unfold(3, k, 1).flatten(4).flatten(2, 3)
        return windows_bMLK @ kernel + memory.keys_b1LA

    def energies(self, covered_bMLA: Tensor, state_bMn: Tensor) -> Tensor:
        """Energies [b, M, L], also of padding."""
        return float32(self.energy(torch.tanh(covered_bMLA + self.query(state_bMn)[:, :, None]))[..., 0])

    def forward(self, memory: Memory, state_bMn: Tensor, past_bMhw: Tensor) -> tuple[Tensor, Tensor]:
        """Attention [b, M, h, w], 0 at padding, and the features [b, M, D] that it reads."""
        weights_bML = (self.energies(self.cover(memory, past_bMhw), state_bMn) + memory.bias_b1L).softmax(-1)
        return weights_bML.view_as(past_bMhw), self.read(memory, weights_bML)

    def read(self, memory: Memory, weights_bML: Tensor) -> Tensor:
        """The mean [b, M, D] of the features, weighted by attention."""
        return weights_bML.to(memory.maps_bLD.dtype) @ memory.maps_bLD


class Step(NamedTuple):
    """The decoder's state after a step, and what it went through; the first dimensions are b and M."""

    middle_bMn: Tensor  # state after the first cell
    attention_bMhw: Tensor
    context_bMD: Tensor
    state_bMn: Tensor
    past_bMhw: Tensor  # the sum of all attention so far


@dataclass
class Cache:
    """What M hypotheses of each image have read so far; the images are the groups of a search."""

    memory: Memory
    state_bMn: Tensor
    past_bMhw: Tensor  # the sum of all attention

    def reorder(self, parents_GM: Tensor) -> None:
        """Let hypothesis m of each image continue what was hypothesis parents[m]."""
        image_G1 = torch.arange(len(parents_GM), device=parents_GM.device)[:, None]
        self.state_bMn, self.past_bMhw = self.state_bMn[image_G1, parents_GM], self.past_bMhw[image_G1, parents_GM]

    def compact(self, live_G: Tensor) -> None:
        """Keep only the images with the given indices."""
        maps_bLD, keys_b1LA, bias_b1L, kernel_KA = self.memory
        self.memory = Memory(maps_bLD[live_G], keys_b1LA[live_G], bias_b1L[live_G], kernel_KA)
        self.state_bMn, self.past_bMhw = self.state_bMn[live_G], self.past_bMhw[live_G]


class Decoder(nn.Module):
    """Maps classes to the scores of the next class: GRU, attention, GRU; then a maxout layer."""

    def __init__(self, features: int, classes: int, c: WAPSettings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, c.embedding)
        self.attention = CoverageAttention(features, c)
        self.cell1 = GRUCell(c.embedding, c.hidden)
        self.cell2 = GRUCell(features, c.hidden, state_bias=True)
        self.from_context = nn.Linear(features, c.embedding)
        self.from_state = nn.Linear(c.hidden, c.embedding)
        self.from_previous = nn.Linear(c.embedding, c.embedding)
        self.dropout = Dropout(c.dropout)
        self.classes = nn.Linear(c.embedding // 2, classes)

    def begin(self, features: Features) -> tuple[Memory, Tensor, Tensor]:
        """Memory, state [b, 1, n] and past attention [b, 1, h, w] before the first step."""
        past_b1hw = torch.zeros_like(features.mask_bhw, dtype=torch.float32)[:, None]
        return self.attention.remember(*features[:2]), features.state_bn[:, None], past_b1hw

    def step(self, memory: Memory, products_bM3n: Tensor, state_bMn: Tensor, past_bMhw: Tensor) -> Step:
        """One step, given the first cell's products of its input."""
        middle_bMn = self.cell1(products_bM3n, state_bMn)
        attention_bMhw, context_bMD = self.attention(memory, middle_bMn, past_bMhw)
        state_bMn = self.cell2(self.cell2.input(context_bMD), middle_bMn)
        return Step(middle_bMn, attention_bMhw, context_bMD, state_bMn, past_bMhw + attention_bMhw)

    def embed(self, words_x: Tensor) -> Tensor:
        """Embeddings [..., m] of classes; zeros where there is no class."""
        return self.embedding(words_x.clamp(min=0)) * (words_x >= 0)[..., None]

    def scores(self, context_xD: Tensor, state_xn: Tensor, previous_xm: Tensor) -> Tensor:
        """Logits [..., V]: three linear layers, their maximum over pairs of channels, a fourth."""
        sum_xm = self.from_context(context_xD) + self.from_state(state_xn) + self.from_previous(previous_xm)
        return float32(self.classes(self.dropout(sum_xm.unflatten(-1, (-1, 2)).amax(-1))))

    def forward(self, features: Features, words_bT: Tensor, trace: list[Step] | None = None) -> Tensor:
        """Logits [b, T, V] of each word given those before it; a given `trace`, which is empty, receives every step."""
        memory, state_bMn, past_bMhw = self.begin(features)
        previous_bTm = self.embed(F.pad(words_bT[:, :-1], (1, 0), value=START))
        products_Tb13n = self.cell1.input(previous_bTm).transpose(0, 1)[:, :, None]
        steps = [] if trace is None else trace
        for products_b13n in products_Tb13n:
            steps.append(self.step(memory, products_b13n, state_bMn, past_bMhw))
            state_bMn, past_bMhw = steps[-1].state_bMn, steps[-1].past_bMhw
        contexts_bTD = torch.cat([step.context_bMD for step in steps], dim=1)
        states_bTn = torch.cat([step.state_bMn for step in steps], dim=1)
        return self.scores(contexts_bTD, states_bTn, previous_bTm)


class Targets(NamedTuple):
    """What is to be read: classes, END last, then NO_WORD."""

    words_bT: Tensor


class DenseWAP(Network):
    """The whole network. Its classes are the vocabulary's words from EOS on, which is END."""

    settings: WAPSettings
    word_rows = ("decoder.embedding.weight", "decoder.classes.weight")
    triples = tuple(f"{cell}.{part}.weight" for cell in ("cell1", "cell2") for part in ("input", "state"))

    def __init__(self, settings: WAPSettings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(settings, vocabulary)
        self.encoder = Encoder(settings)
        self.decoder = Decoder(self.encoder.net.out_channels, len(self.vocabulary) - EOS, settings)
        self.apply(initialize)

    def targets(self, captions: Sequence[Sequence[str]], padded: Callable[[int], int] = int) -> Targets:
        """The classes of captions, T >= longest caption + 1."""
        words_bT = torch.full((len(captions), padded(max(map(len, captions)) + 1)), NO_WORD)
        for row_T, caption in zip(words_bT, captions, strict=True):
            row_T[: len(caption) + 1] = torch.tensor([*self.vocabulary.encode(caption), EOS]) - EOS
        return Targets(words_bT)

    def read(self, features: Features, targets: Targets) -> tuple[Tensor, Tensor]:
        """Logits [b, T, V] and true classes [b, T]; on the CPU only as many steps as the longest caption takes."""
        words_bT = targets.words_bT
        if words_bT.device.type == "cpu":
            words_bT = words_bT[:, : int((words_bT != NO_WORD).sum(1).max())]
        return self.decoder(features, words_bT), words_bT

    def encode(self, images_b1HW: Tensor, mask_bHW: Tensor) -> Features:
        """Feature maps, their mask and the decoder's first state."""
        return self.encoder(images_b1HW, mask_bHW)

    def step(self, words_GM: Tensor, cache: Cache, trace: list[Step] | None = None) -> Tensor:
        """Logits [G, M, V] of the next class; the first is START. A given `trace` receives the step."""
        previous_GMm = self.decoder.embed(words_GM)
        products_GM3n = self.decoder.cell1.input(previous_GMm)
        step = self.decoder.step(cache.memory, products_GM3n, cache.state_bMn, cache.past_bMhw)
        cache.state_bMn, cache.past_bMhw = step.state_bMn, step.past_bMhw
        if trace is not None:
            trace.append(step)
        return self.decoder.scores(step.context_bMD, step.state_bMn, previous_GMm)

    def teacher_forced(self, images_b1HW: Tensor, mask_bHW: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Logits [b, T, V] and true classes [b, T]."""
        return self.read(self.encode(images_b1HW, mask_bHW), targets)

    def forward(self, images_b1HW: Tensor, mask_bHW: Tensor, targets: Targets, label_smoothing: float = 0.0) -> Tensor:
        return self.loss(self.encode(images_b1HW, mask_bHW), targets, label_smoothing)

    def loss(self, features: Features, targets: Targets, label_smoothing: float = 0.0) -> Tensor:
        """The mean over images of the mean cross-entropy of their words: every image counts alike."""
        logits_bTV, words_bT = self.read(features, targets)
        losses_bT = F.cross_entropy(
            logits_bTV.transpose(1, 2), words_bT, reduction="none", label_smoothing=label_smoothing
        )
        return (losses_bT.sum(1) / (words_bT != NO_WORD).sum(1)).mean()

    def trace(self, images_11HW: Tensor, mask_1HW: Tensor, tokens: Sequence[str]) -> AttentionMaps:
        """Attention; coverage enters it with the features, so there is no term of its own to show."""
        steps: list[Step] = []
        self.decoder(self.encode(images_11HW, mask_1HW), self.targets([tokens]).words_bT, steps)
        return AttentionMaps(torch.cat([step.attention_bMhw[0] for step in steps]), None, self.settings.stride)


def initialize(module: nn.Module) -> None:
    """As the authors: Xavier-uniform weights, each of a cell's three matrices by itself; biases 0."""
    if isinstance(module, GRUCell):
        for matrix in (*module.input.weight.chunk(3), *module.state.weight.chunk(3)):
            nn.init.xavier_uniform_(matrix)
    elif isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
