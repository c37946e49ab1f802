"""DenseWAP with a weak loss, after WS-WAP (Truong, Nguyen, Phan, Nakagawa, ICFHR 2020).

The encoder also predicts which symbols are present somewhere in the image, a label that needs no positions. There is no
program to compare with. The descriptions at hand (section 2 of CoMER's paper) leave open, and this file chooses:

- what predicts presence: one linear layer on the features of every cell, of which the largest logit counts;
- which words are symbols: all but the end, hence braces and scripts, too;
- the loss: binary cross-entropy, the mean over words and images;
- its weight beside that of the words: the setting `weak_loss`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.densewap import END, DenseWAP, Features, Targets, initialize
from hmerbench.models.layers import float32
from hmerbench.models.settings import WeakSettings
from hmerbench.models.vocab import Vocabulary


class DenseWAPWeak(DenseWAP):
    """DenseWAP whose encoder learns which symbols an image contains. It reads as DenseWAP does."""

    settings: WeakSettings
    word_rows = (*DenseWAP.word_rows, "presence.weight")

    def __init__(self, settings: WeakSettings, vocabulary: Vocabulary | None = None) -> None:
        super().__init__(settings, vocabulary)
        self.presence = nn.Linear(self.encoder.net.out_channels, self.decoder.classes.out_features)
        initialize(self.presence)

    def loss(self, features: Features, targets: Targets, label_smoothing: float = 0.0) -> Tensor:
        """DenseWAP's loss plus the weighted one of presence, whose labels are not smoothed."""
        weak = presence_loss(self.presence(features.maps_bhwD), features.mask_bhw, targets.words_bT)
        return super().loss(features, targets, label_smoothing) + self.settings.weak_loss * weak


def presence_loss(logits_bhwV: Tensor, mask_bhw: Tensor, words_bT: Tensor) -> Tensor:
    """Binary cross-entropy of whether each class but END is among an image's words, given its logits in every cell."""
    logits_bhwV = float32(logits_bhwV).masked_fill(mask_bhw[..., None], torch.finfo(torch.float32).min)
    logits_bV = logits_bhwV.amax((1, 2))
    present_bV = torch.zeros_like(logits_bV).scatter_(1, words_bT.clamp(min=END), 1.0)  # NO_WORD becomes END
    return F.binary_cross_entropy_with_logits(logits_bV[:, END + 1 :], present_bV[:, END + 1 :])
