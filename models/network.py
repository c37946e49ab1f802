"""The interface of a network: all that training, search, export, the regression gate and the HTML report use of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.settings import NetworkSettings
from hmerbench.models.vocab import Vocabulary

NO_WORD = -100  # where there is no word to predict; torch's losses leave it out

Targets = tuple[Tensor, ...]  # a NamedTuple of the network's own


@dataclass(frozen=True)
class AttentionMaps:
    """Where a network looks at each of T steps, the last of which predicts the end, on its own grid of cells."""

    looked_Thw: Tensor  # sums to 1 over the cells
    suppressed_Thw: Tensor | None  # what coverage subtracts from the energies, up to a constant; None without coverage
    stride: int  # side of a cell in pixels


class Network(nn.Module):
    """Images and captions in, the loss out. A subclass has the settings of its own class in `settings`.

    Images [b, 1, H, W] are in [0, 1], white ink on black, zero-padded on the right and at the bottom; of the mask
    [b, H, W], True is padding. Names of tensors end in their shapes: b images of H x W pixels become h x w cells with D
    features; T words of V known ones; G groups of M hypotheses, N in all; 1 and 2 are themselves.
    """

    word_rows: ClassVar[tuple[str, ...]] = ()  # names of parameters with a row per word: embedding and classifier
    triples: ClassVar[tuple[str, ...]] = ()  # endings of the names of parameters that hold three matrices, row by row

    def __init__(self, settings: NetworkSettings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        self.settings, self.vocabulary = settings, vocabulary or Vocabulary()

    def targets(self, captions: Sequence[Sequence[str]], padded: Callable[[int], int] = int) -> Targets:
        """All that the loss needs besides the images, on the CPU. Must be thread-safe.

        `padded` gives the length to which to pad sequences of a length, so that few shapes recur. Raises ValueError for
        a symbol that is not in the vocabulary.
        """
        raise NotImplementedError

    def unfit(self, caption: Sequence[str]) -> str | None:
        """Why the network cannot learn from a caption, which is left out of its training; None if it can."""
        return None

    def teacher_forced(self, images_b1HW: Tensor, mask_bHW: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
        """Logits [..., V] of every word given those before it, and the true ids [...], NO_WORD where there is none."""
        raise NotImplementedError

    def forward(self, images_b1HW: Tensor, mask_bHW: Tensor, targets: Any, label_smoothing: float = 0.0) -> Tensor:
        """The loss: the mean cross-entropy over all words, unless the network has another one."""
        logits, truth = self.teacher_forced(images_b1HW, mask_bHW, targets)
        return F.cross_entropy(logits.flatten(0, -2), truth.flatten(), label_smoothing=label_smoothing)

    def encode(self, images_b1HW: Tensor, mask_bHW: Tensor) -> Any:
        """What is read of images: a tuple of the network's own, of tensors whose first dimension is the image."""
        raise NotImplementedError

    def step(self, words_GM: Tensor, cache: Any) -> Tensor:
        """Logits [G, M, V] of the next word after one more of each of M hypotheses in each of G groups, whose image and
        earlier words are in the `cache`, of a type of the network's own. The call appends the words to the cache.

        A network that does not read word by word need not implement it; its own search calls what it needs.
        """
        raise NotImplementedError

    def trace(self, images_11HW: Tensor, mask_1HW: Tensor, tokens: Sequence[str]) -> AttentionMaps | None:
        """Where the network looks while it is made to read `tokens`; None if it has no attention to show."""
        return None


def build(settings: NetworkSettings, vocabulary: Vocabulary | None = None) -> Network:
    """A network with the first weights that torch's generator gives it."""
    return resolve_name(settings.code)(settings, vocabulary)
