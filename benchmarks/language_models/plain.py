"""The plain way to compute a language model's loss: what the fast one must equal, and what it is timed against."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.language import GATE_BIAS, LanguageModel, Lexicon, State
from hmerbench.models.settings import LanguageConfig


def plain_loss(model: LanguageModel, words_TB: Tensor, targets_TB: Tensor, state: State) -> Tensor:
    """The loss of a spelled model, summed over all targets: every occurrence of a word passes torch's convolutions, all
    layers of the LSTM are one call, and the loss is torch's, all in float32.

    Dropout is drawn from the same distribution, not the same masks.
    """
    config, cnn = model.config, model.cnn
    x_NdL = cnn.characters(model.spelled_VL[words_TB.flatten()]).transpose(1, 2)
    vectors = []
    for width, linear in enumerate(cnn.filters, start=1):
        kernel = linear.weight.view(-1, width, config.character_size).transpose(1, 2)
        vectors.append(torch.tanh(F.conv1d(x_NdL, kernel, linear.bias)).amax(-1))
    x_NF = torch.cat(vectors, -1)
    for highway in model.highways:
        gate = torch.sigmoid(highway.gate(x_NF) + GATE_BIAS)
        x_NF = gate * torch.relu(highway.transform(x_NF)) + (1 - gate) * x_NF
    h, c = (torch.cat(tensors) for tensors in zip(*state, strict=True))
    weights: list[Tensor] = [parameter for layer in model.lstm for parameter in layer.parameters()]
    x_TBF, training = x_NF.view(*words_TB.shape, -1), model.training
    hidden_TBH, _, _ = torch.lstm(x_TBF, (h, c), weights, True, config.layers, config.dropout, training, False, False)
    logits_NV = model.softmax(F.dropout(hidden_TBH, config.dropout, training)).flatten(0, 1)
    return F.cross_entropy(logits_NV, targets_TB.flatten(), reduction="sum")


def training_steps(
    config: LanguageConfig, words: int, shape: tuple[int, int], bf16: bool
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A training step on a batch of `shape` (steps, sequences), the plain way in float32 and as in the trainer.

    `words` made-up words have the lengths of the Penn Treebank's, and as many distinct ones occur in a batch.
    """
    draw = np.random.default_rng(7)
    lengths = np.clip(draw.normal(7, 2.6, words).round(), 1, 19).astype(int)
    lexicon = Lexicon([f"{number:0{length}}" for number, length in enumerate(lengths)])
    frequencies = (np.arange(words) + 2.7) ** -1.1
    numbers = draw.choice(words, (2, *shape), p=frequencies / frequencies.sum())
    words_TB, targets_TB = map(torch.from_numpy, numbers)

    def side(fast: bool) -> Callable[[], object]:
        model = LanguageModel(config, lexicon)
        model.initialize(0.05)
        optimizer, state = torch.optim.SGD(model.parameters(), fused=fast), model.initial_state(shape[1])

        def step() -> object:
            if fast:
                loss, _ = model(words_TB, targets_TB, state, bf16)
            else:
                loss = plain_loss(model, words_TB, targets_TB, state)
            (loss / shape[1]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    return side(False), side(True)
