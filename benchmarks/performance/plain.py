"""The plain ways, which the fast ones must equal in tests, and against which they are timed.

The joint search is that of the authors' code: every step decodes all prefixes from their start, Python loops go through
the candidates, and no row stops before all are done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.comer import CoMER
from hmerbench.models.decoder import bidirectional_targets
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.language import GATE_BIAS, LanguageModel, Lexicon, State
from hmerbench.models.settings import LanguageConfig
from hmerbench.models.vocab import EOS, PAD, SOS


@dataclass
class Group:
    """One image read in one direction: its beams with their log-probabilities, and complete hypotheses, best first."""

    start: int
    beams: list[list[int]]
    sums: list[float]
    complete: list[tuple[float, list[int]]]  # score, tokens without start and end
    done: bool = False

    def add(self, tokens: list[int], logp: float, options: SearchOptions) -> None:
        """Add a complete hypothesis, given with its start token, and keep the best `beam_size`."""
        self.complete.append((logp / len(tokens) ** options.alpha, tokens[1:]))
        self.complete = sorted(self.complete, key=lambda entry: -entry[0])[: options.beam_size]

    def extend(self, candidates: list[tuple[float, int, int]], options: SearchOptions) -> None:
        """Extend the beams by the best of `candidates` (sum, beam, token), which are sorted, best first."""
        length, kept = len(self.beams[0]), list[tuple[float, int, int]]()
        for rank, (logp, beam, token) in enumerate(candidates):
            if token != SOS + EOS - self.start:
                kept.append((logp, beam, token))
            elif rank < options.beam_size:
                self.add(self.beams[beam], logp, options)
            if len(kept) == options.beam_size:
                break
        if len(self.complete) == options.beam_size:
            self.done = options.early_stopping or self.complete[-1][0] >= kept[0][0] / length**options.alpha
        self.beams = [[*self.beams[beam], token] for _, beam, token in kept]
        self.sums = [logp for logp, _, _ in kept]


@torch.inference_mode()
def plain_search(
    model: CoMER,
    images_b1HW: Tensor,
    mask_bHW: Tensor,
    options: SearchOptions,
    other_sizes: Sequence[tuple[Tensor, Tensor]] = (),
    others: Sequence[CoMER] = (),
) -> list[list[Hypothesis]]:
    """Return what `hmerbench.models.inference.joint_search` does, slowly."""
    b, V = len(images_b1HW), len(model.vocabulary)
    views = ((images_b1HW, mask_bHW), *other_sizes)
    memories = [(network, *network.encode(*view)) for network in (model, *others) for view in views]

    def log_probabilities(rows: Tensor, inputs: Tensor) -> Tensor:
        inputs = inputs.to(images_b1HW.device)
        logits = [network.decoder(features[rows], mask[rows], inputs) for network, features, mask in memories]
        return torch.stack([(logits_BTV / options.temperature).log_softmax(-1) for logits_BTV in logits]).mean(0).cpu()

    starts = {"both": [SOS, EOS], "l2r": [SOS], "r2l": [EOS]}[options.direction]
    groups = [Group(start, [[start]], [0.0], []) for start in starts for _ in range(b)]
    for _ in range(1, options.max_len):
        if all(group.done for group in groups):
            break
        inputs = torch.tensor([tokens for group in groups for tokens in group.beams])
        images = torch.arange(b).repeat(len(starts)).repeat_interleave(len(groups[0].beams))
        logp = log_probabilities(images, inputs)[:, -1]
        sums = torch.tensor([group.sums for group in groups], dtype=logp.dtype)
        top = (logp + sums.flatten()[:, None]).view(len(groups), -1).topk(2 * options.beam_size)
        for group, values, ids in zip(groups, top.values.tolist(), top.indices.tolist(), strict=True):
            if group.done:
                group.beams = [[*tokens, PAD] for tokens in group.beams]
            else:
                candidates = [(value, i // V, i % V) for value, i in zip(values, ids, strict=True)]
                group.extend(candidates, options)
    for group in groups:
        for tokens, logp in zip(group.beams, group.sums, strict=True):
            if not group.done:
                group.add(tokens, logp, options)
    return [rescored(log_probabilities, i, groups[i::b], options) for i in range(b)]


def rescored(
    log_probabilities: Callable[[Tensor, Tensor], Tensor], image: int, groups: list[Group], options: SearchOptions
) -> list[Hypothesis]:
    """All hypotheses of an image, best first, with the scores that the opposite direction gives them."""
    complete = [(group.start == EOS, score, tokens) for group in groups for score, tokens in group.complete]
    ids = [tokens[::-1] if leftward else tokens for leftward, _, tokens in complete]
    reverse = torch.zeros(len(complete))
    if options.direction == "both":
        leftward_N1 = torch.tensor([leftward for leftward, *_ in complete])[:, None]
        targets = (tokens_2NT.unflatten(0, (2, -1)) for tokens_2NT in bidirectional_targets(ids))
        inputs, outputs = (torch.where(leftward_N1, rightward_NT, leftward_NT) for rightward_NT, leftward_NT in targets)
        logp = log_probabilities(torch.full((len(complete),), image), inputs)
        logp = logp.gather(-1, outputs[..., None])[..., 0].masked_fill(outputs == PAD, 0)
        reverse = logp.sum(1) / (inputs != PAD).sum(1, dtype=logp.dtype) ** options.alpha
    hypotheses = [
        Hypothesis(tuple(tokens), forward + backward, forward, backward, "r2l" if leftward else "l2r")
        for (leftward, forward, _), tokens, backward in zip(complete, ids, reverse.tolist(), strict=True)
    ]
    return sorted(hypotheses, key=lambda h: h.score, reverse=True)


# ----------------------------------------------------------------------------------------------------- language models


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
