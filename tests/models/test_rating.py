"""Ratings of hypotheses against what the search itself gives them."""

from dataclasses import replace

import pytest
import torch

from models import SearchOptions, joint_search
from models.inference.rating import rate_hypotheses
from models.vocab import PAD
from tests.models.test_joint_search import random_model

IMAGES, MASK = torch.rand(2, 1, 32, 64, generator=torch.Generator().manual_seed(1)).double(), torch.zeros(2, 32, 64) > 0


@pytest.mark.parametrize("direction", ["both", "l2r", "r2l"])
@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_the_same_image_gives_the_scores_of_the_search(direction, alpha: float) -> None:
    model, options = random_model(0), SearchOptions(beam_size=4, max_len=12, alpha=alpha, direction=direction)
    found = joint_search(model, IMAGES, MASK, options)
    # the search gives what it had to leave without an end, and what has padding in it, another length
    found = [[h for h in one if PAD not in h.ids and len(h.ids) < options.max_len - 1] for one in found]
    assert all(len({h.ids for h in one}) > 1 for one in found)
    blank = [[replace(h, score=0.0, forward=0.0, reverse=0.0) for h in one] for one in found]
    for one, again in zip(found, rate_hypotheses(model, IMAGES, MASK, blank, options), strict=True):
        assert sorted((h.ids, h.direction) for h in one) == sorted((h.ids, h.direction) for h in again)
        scores = {(h.ids, h.direction): (h.score, h.forward, h.reverse) for h in again}
        for h in one:
            assert scores[h.ids, h.direction] == pytest.approx((h.score, h.forward, h.reverse), abs=1e-9)


def test_images_without_hypotheses_and_networks_in_training() -> None:
    model, options = random_model(0), SearchOptions(beam_size=4, max_len=12)
    assert rate_hypotheses(model, IMAGES, MASK, [[], []], options) == [[], []]
    with pytest.raises(ValueError, match="training mode"):
        rate_hypotheses(model.train(), IMAGES, MASK, [[], []], options)
