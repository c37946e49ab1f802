"""The output classes: three special tokens, then the symbols of dictionary.txt in its order."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

PAD, SOS, EOS = 0, 1, 2
SPECIAL = ("<pad>", "<sos>", "<eos>")
DICTIONARY = Path(__file__).with_name("dictionary.txt")


_OLDEST = r"""
! ( ) + , - . / 0 1 2 3 4 5 6 7 8 9 < = > A B C E F G H I L M N P R S T V X Y [ \Delta \Pi \alpha \beta \cdot
\cdots \cos \div \exists \forall \frac \gamma \geq \in \infty \int \lambda \ldots \leq \lim \limits \log \mu
\neq \phi \pi \pm \prime \rightarrow \sigma \sin \sqrt \sum \tan \theta \times \{ \} ] ^ _ a b c d e f g h i j
k l m n o p q r s t u v w x y z { | }
"""
CROHME = (*SPECIAL, *_OLDEST.split())  # of the weights files that list no words, whatever the dictionary says


class Vocabulary:
    """Two-way map between LaTeX tokens and class ids: of the given words in their order, special ones included, or of
    CoMER's authors."""

    def __init__(self, words: Sequence[str] | None = None) -> None:
        self.words: tuple[str, ...] = tuple(words or (*SPECIAL, *DICTIONARY.read_text(encoding="utf-8").split()))
        self.ids: dict[str, int] = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the words in order: weights are valid only for the vocabulary they were trained with."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    def extended(self, words: Iterable[str]) -> "Vocabulary":
        """These words in their order, then those of `words` that are not among them, sorted."""
        new = sorted({*words} - self.ids.keys())
        return Vocabulary((*self.words, *new)) if new else self

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """Ids of LaTeX tokens. Raises ValueError for the first one that is not in the vocabulary."""
        for token in tokens:
            if token not in self.ids or token in SPECIAL:
                raise ValueError(f"symbol {token!r} is not in the vocabulary")
        return [self.ids[token] for token in tokens]

    def decode(self, ids: Sequence[int]) -> list[str]:
        """Tokens of class ids, including <pad>, <sos> and <eos>. Raises ValueError for an id out of range."""
        for i in ids:
            if not 0 <= i < len(self):
                raise ValueError(f"class id {i} is outside the vocabulary of {len(self)} classes")
        return [self.words[i] for i in ids]
