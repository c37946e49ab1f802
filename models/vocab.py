"""The 113 output classes: three special tokens, then the symbols of dictionary.txt in its order."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PAD, SOS, EOS = 0, 1, 2
SPECIAL = ("<pad>", "<sos>", "<eos>")
DICTIONARY = Path(__file__).with_name("dictionary.txt")


class Vocabulary:
    """Two-way map between LaTeX tokens and class ids; `len()` is 113 with the authors' dictionary."""

    def __init__(self) -> None:
        self.words: tuple[str, ...] = (*SPECIAL, *DICTIONARY.read_text(encoding="utf-8").split())
        self.ids: dict[str, int] = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the words in order: weights are valid only for the vocabulary they were trained with."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Ids of LaTeX tokens. Raises ValueError for the first one that is not in the dictionary."""
        for token in tokens:
            if self.ids.get(token, 0) < len(SPECIAL):
                raise ValueError(f"symbol {token!r} is not in models/dictionary.txt")
        return [self.ids[token] for token in tokens]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Tokens of class ids, including <pad>, <sos> and <eos>. Raises ValueError for an id out of range."""
        for i in ids:
            if not 0 <= i < len(self):
                raise ValueError(f"class id {i} is outside the vocabulary of {len(self)} classes")
        return [self.words[i] for i in ids]


def bidirectional_targets(labels: list[list[int]]) -> "tuple[Tensor, Tensor]":
    """Decoder inputs and targets of both directions, each [2b, T] with T = longest label + 1, 0 = pad.

    Rows 0..b-1 read left to right (from sos to eos), rows b..2b-1 right to left (from eos to sos): the start token
    alone tells the direction (BTTR, section 3.4).
    """
    import torch  # not at the top: settings, tables and figures need only the words, and no torch

    left = [([SOS, *label], [*label, EOS]) for label in labels]
    right = [([EOS, *label[::-1]], [*label[::-1], SOS]) for label in labels]
    length = max(len(label) for label in labels) + 1
    inputs_BT = torch.full((2 * len(labels), length), PAD)
    outputs_BT = inputs_BT.clone()
    for row, (source, target) in enumerate(left + right):
        inputs_BT[row, : len(source)] = torch.tensor(source)
        outputs_BT[row, : len(target)] = torch.tensor(target)
    return inputs_BT, outputs_BT
