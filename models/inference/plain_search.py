"""The joint search in its plainest form, an oracle for tests and the baseline that speed is measured against.

It goes the authors' way: every step decodes all prefixes again, candidates are walked in Python loops, and no row
stops before all are done.
"""

import heapq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from models.comer import CoMER
from models.inference.options import Hypothesis, SearchOptions
from models.vocab import EOS, PAD, SOS, bidirectional_targets


@dataclass
class Group:
    """One image read in one direction."""

    start: int
    size: int
    closed: list[tuple[float, int, list[int]]] = field(default_factory=list)  # heap of score, number, tokens
    done: bool = False
    added: int = 0

    @property
    def end(self) -> int:
        return SOS + EOS - self.start

    def add(self, tokens: list[int], logp: float, alpha: float) -> None:
        """Keeps the best `size`; tokens with the start token."""
        self.added += 1
        entry = (logp / len(tokens) ** alpha, self.added, tokens[1:])
        if len(self.closed) < self.size:
            heapq.heappush(self.closed, entry)
        elif entry[0] > self.closed[0][0]:
            heapq.heapreplace(self.closed, entry)

    def walk(
        self, beams: list[list[int]], candidates: list[tuple[float, int, int]], options: SearchOptions
    ) -> list[tuple[float, int, int]]:
        """Candidates (sum, beam, token), best first, to those that go on."""
        onward = []
        for rank, (logp, beam, token) in enumerate(candidates):
            if token == self.end:
                if rank < self.size:
                    self.add(beams[beam], logp, options.alpha)
            else:
                onward.append((logp, beam, token))
            if len(onward) == self.size:
                break
        if len(self.closed) == self.size:
            best = onward[0][0] / len(beams[0]) ** options.alpha
            self.done = options.early_stopping or self.closed[0][0] >= best
        return onward


@torch.inference_mode()
def plain_search(model: CoMER, images_b1HW: Tensor, mask_bHW: Tensor, options: SearchOptions) -> list[list[Hypothesis]]:
    """What `models.inference.beam_search.joint_search` returns, slowly."""
    b, V = len(images_b1HW), model.config.vocab_size
    features, mask = model.encode(images_b1HW, mask_bHW)
    starts = {"both": [SOS, EOS], "l2r": [SOS], "r2l": [EOS]}[options.direction]
    groups = [Group(start, options.beam_size) for start in starts for _ in range(b)]
    beams = [[[group.start]] for group in groups]  # of each group: token lists
    sums = [[0.0] for _ in groups]
    length = 1
    while length < options.max_len and not all(group.done for group in groups):
        per_group = len(beams[0])
        inputs = torch.tensor([tokens for group in beams for tokens in group], device=features.device)
        copies = torch.arange(b).repeat(len(starts)).repeat_interleave(per_group)
        logits = model.decode(features[copies], mask[copies], inputs)[:, -1] / options.temperature
        logp = logits.log_softmax(-1) + torch.tensor(sums, dtype=logits.dtype, device=logits.device).flatten()[:, None]
        top = logp.view(len(groups), per_group * V).topk(2 * options.beam_size)
        for g, group in enumerate(groups):
            if group.done:
                beams[g] = [[*tokens, PAD] for tokens in beams[g]]
                continue
            ids = top.indices[g].tolist()
            candidates = [(s, i // V, i % V) for s, i in zip(top.values[g].tolist(), ids, strict=True)]
            onward = group.walk(beams[g], candidates, options)
            beams[g] = [beams[g][beam] + [token] for _, beam, token in onward]
            sums[g] = [logp for logp, _, _ in onward]
        length += 1
    for g, group in enumerate(groups):
        if not group.done:
            for tokens, logp in zip(beams[g], sums[g], strict=True):
                group.add(tokens, logp, options.alpha)
    return [ranked(model, features[i : i + 1], mask[i : i + 1], groups[i::b], options) for i in range(b)]


def ranked(
    model: CoMER, features_1hwd: Tensor, mask_1hw: Tensor, groups: list[Group], options: SearchOptions
) -> list[Hypothesis]:
    """All hypotheses of an image, rated by the direction they were not found in."""
    closed = [(group, entry) for group in groups for entry in sorted(group.closed, key=lambda entry: entry[1])]
    leftward = torch.tensor([group.start == EOS for group, _ in closed])
    ids = [tokens[::-1] if group.start == EOS else tokens for group, (_, _, tokens) in closed]
    reverse = torch.zeros(len(closed))
    if options.direction == "both":
        both = (x.unflatten(0, (2, -1)).to(features_1hwd.device) for x in bidirectional_targets(ids))
        inputs, outputs = (torch.where(leftward.to(x.device)[:, None], x[0], x[1]) for x in both)
        rows = torch.zeros(len(closed), dtype=torch.long)
        logits = model.decode(features_1hwd[rows], mask_1hw[rows], inputs) / options.temperature
        logp = logits.log_softmax(-1).gather(-1, outputs[..., None])[..., 0].masked_fill(outputs == PAD, 0)
        reverse = logp.sum(1) / (inputs != PAD).sum(1, dtype=logp.dtype) ** options.alpha
    found = [
        Hypothesis(tuple(tokens), forward + back, forward, back, "r2l" if group.start == EOS else "l2r")
        for (group, (forward, _, _)), tokens, back in zip(closed, ids, reverse.tolist(), strict=True)
    ]
    return sorted(found, key=lambda h: h.score, reverse=True)
