"""Ratings of whole sequences: what other views of an image (of another size, say) say about hypotheses.

Names carry shapes: b images, N hypotheses of one image, R rows of a call, T steps, L = h * w feature cells.
"""

from dataclasses import replace

import torch
from torch import Tensor

from models.comer import CoMER
from models.inference.beam_search import normalised, rows_at_once
from models.inference.folded_decoder import FoldedNetwork, Reader
from models.inference.options import Hypothesis, SearchOptions
from models.vocab import bidirectional_targets


@torch.no_grad()
def rate_hypotheses(
    model: CoMER | FoldedNetwork,
    images_b1HW: Tensor,
    mask_bHW: Tensor,
    found: list[list[Hypothesis]],
    options: SearchOptions,
) -> list[list[Hypothesis]]:
    """The hypotheses of each image, longest first, with the scores that these images give them.

    Images and mask as for `joint_search`, which gives the same scores to what it finds itself. ValueError for a model
    in training mode.
    """
    network = model if isinstance(model, FoldedNetwork) else FoldedNetwork(model)
    with network.before(images_b1HW, mask_bHW) as reader:
        return [_rated(reader, image, hypotheses, options) for image, hypotheses in enumerate(found)]


def _rated(reader: Reader, image: int, hypotheses: list[Hypothesis], options: SearchOptions) -> list[Hypothesis]:
    if not hypotheses:
        return []
    hypotheses = sorted(hypotheses, key=lambda h: len(h.ids), reverse=True)  # what `read` wants
    labels = [list(h.ids) for h in hypotheses]
    lengths_N = torch.tensor([len(h.ids) + 1 for h in hypotheses], device=reader.mask_bL.device)
    rows = rows_at_once(int(lengths_N[0]), reader.mask_bL.shape[1])
    scores = []
    for targets in zip(*(ids.chunk(2) for ids in bidirectional_targets(labels)), strict=True):
        inputs, outputs, lengths = (x.to(lengths_N.device).split(rows) for x in (*targets, lengths_N))
        chunks = zip(inputs, outputs, lengths, strict=True)
        scores.append(torch.cat([normalised(reader.read(image, i, n), o, options) for i, o, n in chunks]).tolist())
    rated = []
    for hypothesis, right, left in zip(hypotheses, *scores, strict=True):
        forward, reverse = (right, left) if hypothesis.direction == "l2r" else (left, right)
        reverse = reverse if options.direction == "both" else 0.0
        rated.append(replace(hypothesis, score=forward + reverse, forward=forward, reverse=reverse))
    return rated
