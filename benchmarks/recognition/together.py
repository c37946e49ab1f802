"""Networks that read together with a run's own (`search.together`): a word has the mean of their log-probabilities.

Each was trained in a run of its own; they may differ in recipe, size and seed, not in the scale of the images.
"""

import torch

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import digest_of
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.models.network import Network
from hmerbench.models.weights import load_weights


def others(config: Config, device: torch.device) -> list[Network]:
    """The other networks of a run, ready to read.

    Raises UserError for weights that are not those the run was made with, and for a network that cannot read as the run
    does; CheckpointError for weights that cannot be loaded.
    """
    together, found = config.search.together, list[Network]()
    for number, path in enumerate(together.weights):
        if not path.is_file():
            raise UserError(f"{path}: this run reads together with these weights; restore them, or make another run")
        if together.digests and digest_of(path) != together.digests[number]:
            raise UserError(f"{path}: this run was made with other weights; restore them, or make another run")
        network, its = load_weights(path), RunFolder(path.parent).settings
        if not network.settings.together:
            raise UserError(f"{path}: {its.recipe} reads alone; give runs of networks of CoMER's kind")
        if config.search.direction not in network.settings.directions:
            raise UserError(f"{path}: {its.recipe} does not read {config.search.direction}; give another run")
        if its.data.scale != config.data.scale:
            raise UserError(
                f"{path}: its network reads images at scale {its.data.scale:g}, this run at {config.data.scale:g}; "
                "give runs of the same scale"
            )
        found.append(network.to(device).eval())
    return found
