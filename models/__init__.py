"""CoMER in plain torch, independent of data, training and all files but weights."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from models.config import CoMERConfig
from models.errors import CheckpointError
from models.inference.options import Hypothesis, SearchOptions
from models.vocab import Vocabulary, bidirectional_targets

if TYPE_CHECKING:
    from models.comer import CoMER
    from models.inference.beam_search import joint_search

__all__ = ["CheckpointError", "CoMER", "CoMERConfig", "Hypothesis", "SearchOptions", "Vocabulary"]
__all__ += ["bidirectional_targets", "joint_search"]


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use: settings, tables and figures load without it."""
    modules = {"CoMER": "models.comer", "joint_search": "models.inference.beam_search"}
    if name not in modules:
        raise AttributeError(f"module 'models' has no attribute {name!r}")
    return getattr(import_module(modules[name]), name)
