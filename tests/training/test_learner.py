"""Loss and accuracy of words, each given the true ones before it, of a network whose logits are known."""

import math
from typing import Any

import pytest
import torch

from hmerbench.benchmarks.data.batching import Batch
from hmerbench.benchmarks.training.learner import loss_and_accuracy
from hmerbench.models.network import NO_WORD


class Known:
    """Gives three words these probabilities, whatever it reads; its labels are lists of numbers, -1 for none."""

    def eval(self) -> None:
        pass

    def targets(self, tokens: list) -> torch.Tensor:
        return torch.tensor(tokens)

    def teacher_forced(self, _images: torch.Tensor, _mask: torch.Tensor, truth: torch.Tensor) -> tuple:
        return torch.tensor([0.5, 0.3, 0.2]).log().expand(*truth.shape, 3), truth


def test_loss_and_accuracy_count_words_not_batches() -> None:
    labels: list[Any] = [[[0, 1, NO_WORD], [0, 0, 2]], [[2, NO_WORD, NO_WORD]]]
    image, mask = torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.zeros(1, 4, 4, dtype=torch.bool)
    model: Any = Known()
    loss, accuracy = loss_and_accuracy(model, [Batch([], [(image, mask)], rows) for rows in labels])
    assert loss == pytest.approx(-(3 * math.log(0.5) + math.log(0.3) + 2 * math.log(0.2)) / 6)
    assert accuracy == pytest.approx(50)  # word 0, the most probable, is true three times of six
