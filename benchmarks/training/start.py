"""The weights that a training starts from: those of another run, with rows of their own for words that these lack.

They lie in the run's folder, so that it can be resumed wherever it is taken.
"""

import torch
from torch import Tensor

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.models.network import Network
from hmerbench.models.weights import load_weights

FILE = "start.safetensors"


def first_weights(run: RunFolder) -> Network | None:
    """The network that a run starts from; None if it starts from scratch. Raises UserError or CheckpointError."""
    start, path = run.settings.start, run.path / FILE
    if not start.digest:
        return None
    if not path.is_file() or run.file_digest(FILE) != start.digest:
        raise UserError(f"{path}: is not the file of {start.weights} that this run starts from; give --from again")
    return load_weights(path, run.settings.model)


@torch.no_grad()
def begin_with(model: Network, start: Network) -> None:
    """Give a network the weights of another one whose words are the first of its own; rows of the others stay."""
    own = model.state_dict(keep_vars=True)
    for name, tensor in start.state_dict().items():
        _first_rows(own[name], tensor).copy_(tensor)


def _first_rows(tensor: Tensor, start: Tensor) -> Tensor:
    return tensor[: len(start)] if tensor.shape != start.shape else tensor
