"""Ratings of whole sequences: what other views of an image (of another size, say) say about hypotheses.

Names carry shapes: b images, N hypotheses of one image, R rows of a call, T steps, L = h * w feature cells.
"""

from dataclasses import replace

import torch
from torch import Tensor

from models.comer import CoMER
from models.folded import FoldedDecoder, FoldedEncoder
from models.joint_search import CELLS, Hypothesis, SearchOptions
from models.vocab import PAD, bidirectional_targets


@torch.no_grad()
def rate_hypotheses(
    model: CoMER, images_b1HW: Tensor, mask_bHW: Tensor, found: list[list[Hypothesis]], options: SearchOptions
) -> list[list[Hypothesis]]:
    """The hypotheses of each image, longest first, with the scores that these images give them.

    Images and mask as for `joint_search`, which gives the same scores to what it finds itself. ValueError for a model
    in training mode.
    """
    if model.training:
        raise ValueError("a network in training mode drops out at random; call model.eval() before rating")
    device = images_b1HW.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else images_b1HW.dtype
    with torch.autocast(device, enabled=False):
        features_bhwd, mask_bhw = FoldedEncoder(model.encoder, dtype)(images_b1HW, mask_bHW)
        decoder = FoldedDecoder(model.decoder, features_bhwd, mask_bhw, dtype)
        return [_rated(decoder, image, hypotheses, options) for image, hypotheses in enumerate(found)]


def _rated(
    decoder: FoldedDecoder, image: int, hypotheses: list[Hypothesis], options: SearchOptions
) -> list[Hypothesis]:
    if not hypotheses:
        return []
    hypotheses = sorted(hypotheses, key=lambda h: len(h.ids), reverse=True)  # what `read` wants
    labels = [list(h.ids) for h in hypotheses]
    lengths_N = torch.tensor([len(h.ids) + 1 for h in hypotheses], device=decoder.mask_bL.device)
    rows = max(1, CELLS // (int(lengths_N[0]) * decoder.mask_bL.shape[1]))
    scores = []
    for targets in zip(*(ids.chunk(2) for ids in bidirectional_targets(labels)), strict=True):
        inputs, outputs, lengths = (x.to(lengths_N.device).split(rows) for x in (*targets, lengths_N))
        parts = zip(inputs, outputs, lengths, strict=True)
        scores.append([score for i, o, n in parts for score in _scores(decoder, image, i, o, n, options)])
    rated = []
    for hypothesis, right, left in zip(hypotheses, *scores, strict=True):
        forward, reverse = (right, left) if hypothesis.direction == "l2r" else (left, right)
        reverse = reverse if options.direction == "both" else 0.0
        rated.append(replace(hypothesis, score=forward + reverse, forward=forward, reverse=reverse))
    return rated


def _scores(
    decoder: FoldedDecoder, image: int, inputs_RT: Tensor, outputs_RT: Tensor, length_R: Tensor, options: SearchOptions
) -> list[float]:
    """Length-normalised log-probabilities of R rows."""
    logits_RTV = decoder.read(image, inputs_RT, length_R) / options.temperature
    logp_RT = logits_RTV.log_softmax(-1).gather(-1, outputs_RT[..., None])[..., 0].masked_fill(outputs_RT == PAD, 0)
    return (logp_RT.sum(1) / length_R.to(logp_RT.dtype) ** options.alpha).tolist()
