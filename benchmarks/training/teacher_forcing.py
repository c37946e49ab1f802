"""Evaluation with teacher forcing: every word is predicted from the true words before it."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F

from hmerbench.benchmarks.data.batching import Batch
from hmerbench.models.network import NO_WORD, Network


@torch.inference_mode()
def teacher_forced(model: Network, batches: Iterable[Batch]) -> tuple[float, float]:
    """Mean loss per word and accuracy of words in percent, each word given the true ones before it.

    Puts the model into evaluation mode; runs on the CPU, in float32.
    """
    model.eval()
    loss, correct, words = 0.0, 0, 0
    for batch in batches:
        logits, truth = model.predict(batch.images.float() / 255, batch.mask, model.targets(batch.tokens))
        loss += float(F.cross_entropy(logits.flatten(0, -2), truth.flatten(), reduction="sum"))
        correct += int((logits.argmax(-1) == truth).sum())
        words += int((truth != NO_WORD).sum())
    return loss / words, 100 * correct / words
