"""The loss, and how well a network reads when it is given the truth before each token."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.data.batching import Batch
from models import CoMER, Vocabulary
from models.layers import float32
from models.vocab import PAD, bidirectional_targets


def token_loss(logits_BTV: Tensor, targets_BT: Tensor, label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    """Cross entropy over the tokens of both directions (CoMER, eq. 4), padding left out, in float32 at least."""
    return F.cross_entropy(
        float32(logits_BTV).flatten(0, 1),
        targets_BT.flatten(),
        ignore_index=PAD,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


@torch.inference_mode()
def teacher_forced(model: CoMER, batches: Iterable[Batch]) -> tuple[float, float]:
    """(mean loss per token, tokens right in percent) over both directions, each token after the true ones before it.

    Puts the model into evaluation mode; on the CPU, in the model's own type.
    """
    model.eval()
    vocabulary, loss, right, tokens = Vocabulary(), 0.0, 0, 0
    for batch in batches:
        inputs, targets = bidirectional_targets([vocabulary.encode(label) for label in batch.tokens])
        logits = model(batch.images.float() / 255, batch.mask, inputs)
        known = targets != PAD
        loss += float(token_loss(logits, targets, reduction="sum"))
        right += int(((logits.argmax(-1) == targets) & known).sum())
        tokens += int(known.sum())
    return loss / tokens, 100 * right / tokens
