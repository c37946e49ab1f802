"""The network of the paper in plain torch, free of data, training and files other than weights."""

from models.comer import CoMER, CoMERConfig
from models.interchange import CheckpointError
from models.joint_search import Hypothesis, SearchOptions, joint_search
from models.vocab import Vocabulary, bidirectional_targets

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
