"""The character-aware language model (Kim et al., AAAI-16): words are read as characters and predicted as words.

A spelled word passes a convolution over its characters and a highway (sec. 2.3, 2.4), the sequence of words two LSTM
layers (sec. 2.1), and a softmax over all words predicts the next one. Facts of the authors' program that the paper does
not state, and that its perplexities need: the highway's gate has a fixed bias of -2 besides its learnt one, every
parameter starts uniform in ±0.05 (biases too; no forget gate starts open), and dropout never touches the LSTM's input.

Shapes: T steps, B sequences, U distinct words, L places of a spelled word, P places of a filter, F filters, H units of
the LSTM, V words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import Tensor, nn

from hmerbench.models.files import CheckpointError, one_line
from hmerbench.models.layers import Dropout, float32
from hmerbench.models.settings import LanguageConfig
from hmerbench.models.weights import pack_tensors, read_tensors, with_weights

UNKNOWN, LINE_END = "<unk>", "\n"  # words of one character of their own, as `|` and `+` are in the authors' program
PAD, START, END = 0, 1, 2  # characters: padding, and the two ends of every word, which the authors write { and }
GATE_BIAS = -2.0  # fixed: a highway begins by carrying its input through
FORMAT = "hmerbench-language-1"  # of its weights files: safetensors with settings and words in the header
State = list[tuple[Tensor, Tensor]]  # (h, c) of each layer, [1, B, H]


class Lexicon:
    """The words of a language model, in the order of its classes, and their spelling."""

    def __init__(self, words: Sequence[str]):
        self.words = list(words)
        self.index = {word: number for number, word in enumerate(self.words)}
        units = sorted({unit for word in self.words for unit in _units(word)})
        self.characters = {unit: number for number, unit in enumerate(units, start=END + 1)}

    @classmethod
    def of(cls, text: Iterable[str]) -> "Lexicon":
        """The words of a training text by first occurrence, after the unknown word."""
        return cls(list(dict.fromkeys([UNKNOWN, *text])))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: Iterable[str]) -> Tensor:
        """Numbers of the words of a text [N]; a word that the lexicon lacks is unknown."""
        unknown = self.index[UNKNOWN]
        return torch.tensor([self.index.get(word, unknown) for word in text])

    def spelled(self, shortest: int = 0) -> Tensor:
        """Characters of every word between its ends, padded to the longest word, or to `shortest` [V, L]."""
        spellings = [[START, *(self.characters[unit] for unit in _units(word)), END] for word in self.words]
        longest = max(shortest, *map(len, spellings))
        return torch.tensor([spelling + [PAD] * (longest - len(spelling)) for spelling in spellings])


def _units(word: str) -> Sequence[str]:
    return [word] if word in (UNKNOWN, LINE_END) else word


class CharacterCNN(nn.Module):
    """Vectors of spelled words: of every filter, its largest response at any place (sec. 2.3).

    tanh is monotone, so it is taken after the maximum. Filters are products with windows of characters, which lie
    place by place, so that the maximum over places runs over whole rows.
    """

    def __init__(self, characters: int, config: LanguageConfig):
        super().__init__()
        self.characters = nn.Embedding(characters, config.character_size)
        self.filters: Any = nn.ModuleList(  # of nn.Linear
            nn.Linear(width * config.character_size, count) for width, count in config.filters_by_width.items()
        )

    def forward(self, spelled_UL: Tensor) -> Tensor:
        """Vectors [U, F] of words of at least as many characters as the widest filter."""
        x_LUd = self.characters(spelled_UL.T)
        responses = []
        for width, linear in enumerate(self.filters, start=1):
            places = len(x_LUd) - width + 1
            windows_PUd = torch.cat([x_LUd[shift : shift + places] for shift in range(width)], -1)
            responses.append(float32(F.linear(windows_PUd, linear.weight).amax(0)) + linear.bias)
        return torch.tanh(torch.cat(responses, -1))


class Highway(nn.Module):
    """A layer that gates between a transformation of its input and the input itself (sec. 2.4)."""

    def __init__(self, size: int):
        super().__init__()
        self.gate, self.transform = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, x_UF: Tensor) -> Tensor:
        gate = torch.sigmoid(float32(self.gate(x_UF)) + GATE_BIAS)
        return gate * torch.relu(float32(self.transform(x_UF))) + (1 - gate) * x_UF


class LanguageModel(nn.Module):
    """Predicts every next word of sequences that go on from batch to batch."""

    spelled_VL: Tensor

    def __init__(self, config: LanguageConfig, lexicon: Lexicon):
        super().__init__()
        self.config, self.lexicon = config, lexicon
        self.register_buffer("spelled_VL", lexicon.spelled(config.widths), persistent=False)
        spelled, size = config.words == "spelled", sum(config.filters_by_width.values())
        if spelled:
            self.cnn = CharacterCNN(END + 1 + len(lexicon.characters), config)
            self.highways: Any = nn.Sequential(*(Highway(size) for _ in range(config.highways)))
        else:
            self.table, size = nn.Embedding(len(lexicon), config.word_size), config.word_size
        sizes = [size] + [config.hidden] * (config.layers - 1)
        self.lstm = nn.ModuleList(nn.LSTM(size, config.hidden) for size in sizes)
        self.input_dropout, self.dropout = Dropout(config.input_dropout), Dropout(config.dropout)
        self.softmax = nn.Linear(config.hidden, len(lexicon))

    @property
    def device(self) -> torch.device:
        return self.softmax.weight.device

    @torch.no_grad()
    def initialize(self, half_width: float | None) -> None:
        """Draw every parameter uniformly in ±half_width; None keeps torch's own ranges."""
        if half_width is not None:
            for parameter in self.parameters():
                parameter.uniform_(-half_width, half_width)
        self.clear_padding()

    @torch.no_grad()
    def clear_padding(self) -> None:
        """Set the vector of padding to zero. It has a gradient, which counts in its norm, so every step needs this."""
        if self.config.words == "spelled":
            self.cnn.characters.weight[PAD] = 0

    def initial_state(self, batch: int) -> State:
        """The state before the first word of `batch` sequences."""
        zeros = self.softmax.weight.new_zeros(1, batch, self.config.hidden)
        return [(zeros, zeros) for _ in self.lstm]

    def vectors(self, words_U: Tensor, bf16: bool = False) -> Tensor:
        """Vectors [U, F] of words, given as numbers; bf16: with products in bfloat16."""
        if self.config.words == "table":
            return self.table(words_U)
        with torch.autocast(words_U.device.type, torch.bfloat16, enabled=bf16):
            return self.highways(self.cnn(self.spelled_VL[words_U]))

    def forward(self, words_TB: Tensor, targets_TB: Tensor, state: State, bf16: bool = False) -> tuple[Tensor, State]:
        """The loss (negative log-likelihood in nats), summed over all targets, and the state after the last word.

        Every word's vector is computed once, however often it occurs. `bf16`: products of the convolution, the highway
        and the softmax take bfloat16 factors.
        """
        distinct_U, place_TB = torch.unique(words_TB, return_inverse=True)
        x_TBF = F.embedding(place_TB, self.vectors(distinct_U, bf16))
        hidden_TBH, state = self.run(x_TBF, state)
        factors = torch.bfloat16 if bf16 else hidden_TBH.dtype
        loss = SummedLoss.apply(
            hidden_TBH.flatten(0, 1), self.softmax.weight, self.softmax.bias, targets_TB.flatten(), factors
        )
        return loss, state

    @torch.no_grad()
    def log_likelihoods(self, words_TB: Tensor, targets_TB: Tensor, state: State, vectors_VF: Tensor):
        """The log-probability of every target, in nats [T, B], and the state after the last word.

        `vectors_VF`: the vectors of all words, which need computing once only.
        """
        hidden_TBH, state = self.run(vectors_VF[words_TB], state)
        log_p_TBV = torch.log_softmax(self.softmax(hidden_TBH), -1)
        return log_p_TBV.gather(-1, targets_TB[..., None])[..., 0], state

    @torch.no_grad()
    def of_lines(self, lines: Sequence[Sequence[str]], vectors_VF: Tensor) -> list[float]:
        """The log-probability in nats of every line, its end included, as a line that begins a text."""
        end = self.lexicon.index[LINE_END]
        targets = [self.lexicon.encode([*line, LINE_END]) for line in lines]
        targets_TB = nn.utils.rnn.pad_sequence(targets, padding_value=end)
        words_TB = torch.cat([torch.full_like(targets_TB[:1], end), targets_TB[:-1]])
        log_p_TB, _ = self.log_likelihoods(words_TB, targets_TB, self.initial_state(len(lines)), vectors_VF)
        return [float(log_p_T[: len(line) + 1].double().sum()) for line, log_p_T in zip(lines, log_p_TB.T, strict=True)]

    def run(self, x_TBF: Tensor, state: State) -> tuple[Tensor, State]:
        """The last layer's outputs [T, B, H], ready for the softmax, and the state after them; one layer per call,
        as the fast kernels of a CPU want it."""
        x_TBF, after = self.input_dropout(x_TBF), []
        for layer, before in zip(self.lstm, state, strict=True):
            x_TBF, (h, c) = layer(x_TBF, before)
            x_TBF = self.dropout(x_TBF)
            after.append((h.detach(), c.detach()))
        return x_TBF, after


class SummedLoss(torch.autograd.Function):
    """Cross-entropy of a linear layer's softmax, summed over its rows, together with its gradients.

    The largest part of a step: the gradient is the softmax less one at the target, so that both come from a single
    array of rows x words. Products take factors of the type `factors`; everything else is in the layer's type.
    """

    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, weight_VH: Tensor, bias_V: Tensor, targets_N: Tensor, factors: torch.dtype):
        """The sum of -log p(target) over the rows; infinite if a target is less likely than e^-103."""
        x, weight = x_NH.to(factors), weight_VH.to(factors)
        logits_NV = F.linear(x, weight).to(bias_V.dtype).add_(bias_V)
        p_NV = torch.softmax(logits_NV, -1, out=logits_NV)
        target = torch.arange(len(x), device=x.device), targets_N
        loss = -p_NV[target].log().sum()
        if any(ctx.needs_input_grad):
            p_NV[target] -= 1
            gradient = p_NV.to(factors)
            gradients = gradient @ weight, gradient.T @ x
            ctx.save_for_backward(*(tensor.to(bias_V.dtype) for tensor in gradients), p_NV.sum(0))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor):
        """Gradients of the layer's input, weight and bias."""
        return *(gradients[0] * gradient for gradient in ctx.saved_tensors), None, None


# --- weights files ------------------------------------------------------------------------------------------------


def pack_language_model(model: LanguageModel) -> bytes:
    """A weights file: the model's tensors, its settings and its words."""
    return pack_tensors(
        model.state_dict(), {"format": FORMAT, "model": asdict(model.config), "words": model.lexicon.words}
    )


def load_language_model(path: Path) -> LanguageModel:
    """The model in a file of `pack_language_model`, on the CPU, in evaluation mode.

    Raises CheckpointError for a missing, damaged or foreign file.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such weights file; `hmerbench reproduce-lm` makes one")
    try:
        header, state = read_tensors(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; delete it, and `hmerbench reproduce-lm` makes it again") from None
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a language model's weights; give the weights.safetensors of its run folder")
    try:
        config, words = LanguageConfig(**header["model"]), TypeAdapter(list[str]).validate_python(header["words"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: its configuration is unknown ({one_line(error)}); update this suite") from None
    if len(words) * max(map(len, words), default=0) > sum(tensor.nbytes for tensor in state.values()):
        raise CheckpointError(f"{path}: they do not fit its {len(words):,} words; give weights of this model")
    lexicon = Lexicon(words)
    return with_weights(path, lambda: LanguageModel(config, lexicon), state).eval()
