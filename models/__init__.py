"""The network of the paper in plain torch, free of data, training and files other than weights."""

from models.comer import CoMER, CoMERConfig
from models.vocab import Vocabulary, bidirectional_targets

__all__ = ["CoMER", "CoMERConfig", "Vocabulary", "bidirectional_targets"]
