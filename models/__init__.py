"""Networks in plain torch, independent of data, training and all files but weights."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from models.errors import CheckpointError
from models.inference.options import Hypothesis, SearchOptions
from models.settings import NETWORKS, CoMERSettings, NetworkSettings
from models.vocab import Vocabulary

if TYPE_CHECKING:
    from models.comer import CoMER
    from models.inference.searcher import searcher
    from models.network import Network, build

__all__ = ["NETWORKS", "CheckpointError", "CoMER", "CoMERSettings", "Hypothesis", "Network", "NetworkSettings"]
__all__ += ["SearchOptions", "Vocabulary", "build", "searcher"]


def __getattr__(name: str) -> Any:
    """Import what needs torch on first use: settings, tables and figures load without it."""
    modules = {
        "CoMER": "models.comer",
        "Network": "models.network",
        "build": "models.network",
        "searcher": "models.inference.searcher",
    }
    if name not in modules:
        raise AttributeError(f"module 'models' has no attribute {name!r}")
    return getattr(import_module(modules[name]), name)
