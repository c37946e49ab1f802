"""The teacher-forced reader: how likely whole sequences are, each token after the true ones before it.

A search rates by it what it found in the other direction; `rate_hypotheses` tells what other views of an image (of
another size, say) say about hypotheses. Names carry shapes: b images, N sequences that read one image, R of them at
once, T steps, V classes.
"""

from dataclasses import replace

import torch
from torch import Tensor

from models.comer import CoMER
from models.inference.folded_decoder import FoldedNetwork, Reader
from models.inference.options import Hypothesis, SearchOptions
from models.vocab import PAD, bidirectional_targets

# at once are rated at most so many sequences * steps, and so many of these times feature cells
MOST_WORDS, MOST_WORD_CELLS = 2**10, 2**16


def rate_rows(
    reader: Reader, image: int, inputs_NT: Tensor, outputs_NT: Tensor, steps_N: Tensor, options: SearchOptions
) -> Tensor:
    """Log-probability / steps ** alpha [N] of outputs after inputs; after its steps (end included) a row holds PAD.

    Sequences of similar length go together, as many as fit: what they need grows with the square of their words.
    """
    order_N = steps_N.argsort(descending=True, stable=True)
    lengths, scores_N, first = (
        steps_N[order_N].tolist(),
        reader.mask_bL.new_zeros(len(steps_N), dtype=reader.decoder.stream),
        0,
    )
    while first < len(lengths):
        T = lengths[first]
        rows_R = order_N[first : first + max(1, min(MOST_WORD_CELLS // reader.mask_bL.shape[1], MOST_WORDS) // T)]
        logits_RTV = reader.read(image, inputs_NT[rows_R, :T], steps_N[rows_R])
        logp_RTV, outputs_RT = (logits_RTV / options.temperature).log_softmax(-1), outputs_NT[rows_R, :T]
        padding_RT = outputs_RT == PAD
        logp_RT = logp_RTV.gather(-1, outputs_RT[..., None])[..., 0].masked_fill(padding_RT, 0)
        scores_N[rows_R] = logp_RT.sum(1) / (~padding_RT).sum(1, dtype=logp_RT.dtype) ** options.alpha
        first += len(rows_R)
    return scores_N


@torch.no_grad()
def rate_hypotheses(
    model: CoMER | FoldedNetwork,
    images_b1HW: Tensor,
    mask_bHW: Tensor,
    found: list[list[Hypothesis]],
    options: SearchOptions,
) -> list[list[Hypothesis]]:
    """The hypotheses of each image with the scores that these images give them.

    Images and mask as for `joint_search`, which gives the same scores to what it finds itself. ValueError for a model
    in training mode.
    """
    network = model if isinstance(model, FoldedNetwork) else FoldedNetwork(model)
    with network.before(images_b1HW, mask_bHW) as reader:
        return [_rated(reader, image, hypotheses, options) for image, hypotheses in enumerate(found)]


def _rated(reader: Reader, image: int, hypotheses: list[Hypothesis], options: SearchOptions) -> list[Hypothesis]:
    if not hypotheses:
        return []
    device = reader.mask_bL.device
    inputs, outputs = (ids.to(device) for ids in bidirectional_targets([list(h.ids) for h in hypotheses]))
    steps = torch.tensor([len(h.ids) + 1 for h in hypotheses], device=device).repeat(2)
    rightward, leftward = rate_rows(reader, image, inputs, outputs, steps, options).chunk(2)
    rated = []
    for hypothesis, right, left in zip(hypotheses, rightward.tolist(), leftward.tolist(), strict=True):
        forward, reverse = (right, left) if hypothesis.direction == "l2r" else (left, right)
        reverse = reverse if options.direction == "both" else 0.0
        rated.append(replace(hypothesis, score=forward + reverse, forward=forward, reverse=reverse))
    return rated
