"""The joint search in its plainest form, an oracle for tests and the baseline that speed is measured against.

It goes the authors' way: every step decodes all prefixes again, candidates are walked in Python loops, and no row
stops before all are done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.comer import CoMER
from models.inference.options import Hypothesis, SearchOptions
from models.vocab import EOS, PAD, SOS, bidirectional_targets


@dataclass
class Group:
    """One image read in one direction: its beams with their sums, and the best closed hypotheses, best first."""

    start: int
    beams: list[list[int]]
    sums: list[float]
    closed: list[tuple[float, list[int]]]
    done: bool = False

    def close(self, tokens: list[int], logp: float, options: SearchOptions) -> None:
        """Offers a hypothesis; tokens with the start token."""
        self.closed.append((logp / len(tokens) ** options.alpha, tokens[1:]))
        self.closed = sorted(self.closed, key=lambda entry: -entry[0])[: options.beam_size]

    def walk(self, candidates: list[tuple[float, int, int]], options: SearchOptions) -> None:
        """Goes on with the best of the candidates (sum, beam, token), which come best first."""
        length, onward = len(self.beams[0]), list[tuple[float, int, int]]()
        for rank, (logp, beam, token) in enumerate(candidates):
            if token != SOS + EOS - self.start:
                onward.append((logp, beam, token))
            elif rank < options.beam_size:
                self.close(self.beams[beam], logp, options)
            if len(onward) == options.beam_size:
                break
        if len(self.closed) == options.beam_size:
            self.done = options.early_stopping or self.closed[-1][0] >= onward[0][0] / length**options.alpha
        self.beams = [[*self.beams[beam], token] for _, beam, token in onward]
        self.sums = [logp for logp, _, _ in onward]


@torch.inference_mode()
def plain_search(
    model: CoMER,
    images_b1HW: Tensor,
    mask_bHW: Tensor,
    options: SearchOptions,
    other_sizes: Sequence[tuple[Tensor, Tensor]] = (),
) -> list[list[Hypothesis]]:
    """What `models.inference.beam_search.joint_search` returns, slowly."""
    b, V = len(images_b1HW), model.config.vocab_size
    memories = [model.encode(*view) for view in ((images_b1HW, mask_bHW), *other_sizes)]

    def log_probabilities(rows: Tensor, inputs: Tensor) -> Tensor:
        inputs = inputs.to(images_b1HW.device)
        logits = [model.decode(features[rows], mask[rows], inputs) / options.temperature for features, mask in memories]
        return torch.stack([one.log_softmax(-1) for one in logits]).mean(0).cpu()

    starts = {"both": [SOS, EOS], "l2r": [SOS], "r2l": [EOS]}[options.direction]
    groups = [Group(start, [[start]], [0.0], []) for start in starts for _ in range(b)]
    for _ in range(1, options.max_len):
        if all(group.done for group in groups):
            break
        inputs = torch.tensor([tokens for group in groups for tokens in group.beams])
        copies = torch.arange(b).repeat(len(starts)).repeat_interleave(len(groups[0].beams))
        logp = log_probabilities(copies, inputs)[:, -1]
        sums = torch.tensor([group.sums for group in groups], dtype=logp.dtype)
        top = (logp + sums.flatten()[:, None]).view(len(groups), -1).topk(2 * options.beam_size)
        for group, values, ids in zip(groups, top.values.tolist(), top.indices.tolist(), strict=True):
            if group.done:
                group.beams = [[*tokens, PAD] for tokens in group.beams]
            else:
                candidates = [(value, i // V, i % V) for value, i in zip(values, ids, strict=True)]
                group.walk(candidates, options)
    for group in groups:
        for tokens, logp in zip(group.beams, group.sums, strict=True):
            if not group.done:
                group.close(tokens, logp, options)
    return [rated(log_probabilities, i, groups[i::b], options) for i in range(b)]


def rated(
    log_probabilities: Callable[[Tensor, Tensor], Tensor], image: int, groups: list[Group], options: SearchOptions
) -> list[Hypothesis]:
    """All hypotheses of an image, rated by the direction they were not found in; best first."""
    closed = [(group.start == EOS, score, tokens) for group in groups for score, tokens in group.closed]
    ids = [tokens[::-1] if leftward else tokens for leftward, _, tokens in closed]
    reverse = torch.zeros(len(closed))
    if options.direction == "both":
        leftward_N1 = torch.tensor([leftward for leftward, *_ in closed])[:, None]
        both = (x.unflatten(0, (2, -1)) for x in bidirectional_targets(ids))
        inputs, outputs = (torch.where(leftward_N1, x[0], x[1]) for x in both)
        logp = log_probabilities(torch.full((len(closed),), image), inputs)
        logp = logp.gather(-1, outputs[..., None])[..., 0].masked_fill(outputs == PAD, 0)
        reverse = logp.sum(1) / (inputs != PAD).sum(1, dtype=logp.dtype) ** options.alpha
    found = [
        Hypothesis(tuple(tokens), forward + back, forward, back, "r2l" if leftward else "l2r")
        for (leftward, forward, _), tokens, back in zip(closed, ids, reverse.tolist(), strict=True)
    ]
    return sorted(found, key=lambda h: h.score, reverse=True)
