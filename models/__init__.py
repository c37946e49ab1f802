"""The network of the paper in plain torch, free of data, training and files other than weights."""

from models.comer import CoMER, CoMERConfig
from models.inference.beam_search import joint_search
from models.inference.options import Hypothesis, SearchOptions
from models.vocab import Vocabulary, bidirectional_targets
from models.weights import CheckpointError

__all__ = [
    "CheckpointError",
    "CoMER",
    "CoMERConfig",
    "Hypothesis",
    "SearchOptions",
    "Vocabulary",
    "bidirectional_targets",
    "joint_search",
]
