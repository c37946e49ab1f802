"""The training loss, and evaluation with teacher forcing."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.data.batching import Batch
from models import CoMER, Vocabulary
from models.layers import float32
from models.vocab import PAD, bidirectional_targets


def token_loss(logits_BTV: Tensor, targets_BT: Tensor, label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    """Cross-entropy over the tokens of both directions (CoMER, eq. 4), without padding, in at least float32."""
    return F.cross_entropy(
        float32(logits_BTV).flatten(0, 1),
        targets_BT.flatten(),
        ignore_index=PAD,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


@torch.inference_mode()
def teacher_forced(model: CoMER, batches: Iterable[Batch]) -> tuple[float, float]:
    """Mean loss per token and token accuracy in percent over both directions, each token given the true prefix.

    Puts the model into evaluation mode; runs on the CPU, in the model's own type.
    """
    model.eval()
    vocabulary, loss, correct, tokens = Vocabulary(), 0.0, 0, 0
    for batch in batches:
        inputs, targets = bidirectional_targets([vocabulary.encode(label) for label in batch.tokens])
        logits = model(batch.images.float() / 255, batch.mask, inputs)
        real = targets != PAD
        loss += float(token_loss(logits, targets, reduction="sum"))
        correct += int(((logits.argmax(-1) == targets) & real).sum())
        tokens += int(real.sum())
    return loss / tokens, 100 * correct / tokens
