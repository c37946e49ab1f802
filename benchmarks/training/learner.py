"""A network in training by one of several processes: its gradients, its steps, and the weights to recognize with."""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.batching import Inputs
from hmerbench.benchmarks.environment import in_bf16
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.training.batch_norm import batch_norms, momentum, recalibrated
from hmerbench.benchmarks.training.checkpoint import flatten_optimizer, restore_optimizer
from hmerbench.benchmarks.training.cuda_graphs import CudaRecord, Record, Replays
from hmerbench.benchmarks.training.distributed import Team, seed_of
from hmerbench.benchmarks.training.optimizer import make_optimizer, update_average
from hmerbench.models.network import Network, build


class Learner:
    """The network, its optimizer and its averaged weights. A step is `share` micro-batches, then an `update`."""

    def __init__(self, config: Config, team: Team):
        """Raises UserError if the processes of the team cannot share the micro-batches of a step evenly."""
        self.config, self.team, training = config, team, config.training
        if training.batching.micro_batches % team.world:
            raise UserError(
                f"micro-batches per step, {training.batching.micro_batches}, must be a multiple of the {team.world} "
                "processes; set training.batching.micro_batches"
            )
        self.share = training.batching.micro_batches // team.world  # micro-batches per process and step
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # so the first weights depend only on the settings
            self.model = build(config.model).to(team.device)
        self.bf16 = in_bf16(training.bf16, team.device)
        # faster for bf16 convolutions and for matrix products in place of 1x1 ones, with the same results
        fast = self.bf16 or team.device.type == "cuda"
        self.layout = torch.channels_last if fast else torch.contiguous_format
        self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.parallel: nn.Module = self.model
        if team.world > 1:
            # otherwise gradients are grouped anew after the first step, also of a resumed training, and sums over three
            # or more processes are rounded differently
            self.parallel = DistributedDataParallel(self.model, find_unused_parameters=True)
            warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
        self.norms = batch_norms(self.model)
        self.replays = make_replays(team, config.training.graphs)
        averaged = self.model.named_parameters() if training.average else ()
        self.average = {name: parameter.detach().clone() for name, parameter in averaged}
        self.optimizer = make_optimizer(self.model, training.optimizer, self.bf16)

    def train(self, fixed: bool) -> None:
        """Prepare the network for training; with `fixed`, batch normalization reads its statistics and leaves them."""
        self.model.train()
        for norm in self.norms:
            norm.train(not fixed)

    def micro_step(self, inputs: Inputs, k: int, step: int) -> Tensor:
        """Add the gradient of this process's k-th micro-batch of a step, and return its loss."""
        index = k * self.team.world + self.team.rank
        seed = seed_of(self.config.seed, step, index)  # of dropout
        if self.replays is not None:
            return self.replays(self._gradients, inputs, index == 0, seed)
        torch.manual_seed(seed)
        model = self.parallel  # exchanges gradients only in the last micro-batch of a step
        with model.no_sync() if isinstance(model, DistributedDataParallel) and k < self.share - 1 else nullcontext():
            return self._gradients(inputs, index == 0)

    def _gradients(self, inputs: Inputs, first: bool) -> Tensor:
        """Add the gradient of one micro-batch, scaled to its share of a step, and return its loss."""
        # running statistics are updated by the first micro-batch of a step only, as in the authors' training on four
        # GPUs, where the buffers of rank 0 overwrite the others
        with nullcontext() if first else momentum(self.norms, 0.0):
            loss = self._loss(self.parallel, inputs)
        (loss / self.share).backward()
        return loss.detach()

    def _loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        training, images = self.config.training, inputs.images.float() / 255
        device, cache = self.team.device.type, self.replays is None
        with torch.autocast(device, torch.bfloat16, enabled=self.bf16, cache_enabled=cache):
            images = images.contiguous(memory_format=self.layout)
            return model(images, inputs.mask, inputs.targets, training.label_smoothing)

    def update(self, step: int) -> None:
        """End a step, the `step`-th from 0: clip the gradients, change the weights by them, and discard them."""
        training = self.config.training
        if training.optimizer.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), training.optimizer.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.replays is None)
        update_average(self.average, self.model, training.average, step)

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.items()}
        return tensors | flatten_optimizer(self.optimizer)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Become what was saved as `tensors`."""
        self.model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
        for name, tensor in self.average.items():
            tensor.copy_(tensors[f"average.{name}"])
        restore_optimizer(self.optimizer, tensors)

    def measure_statistics(self, batches: Iterable[Inputs]) -> None:
        """Replace the running statistics of batch normalization by those of training `batches`, read with the current
        weights, not the averaged ones. Before a step, `train` must be called again."""
        if self.replays is not None:  # they hold steps in which each batch has statistics of its own
            self.replays = make_replays(self.team, self.replays.limit)
        self._recalibrate(self.model, batches)

    def inference_model(self, batches: Iterable[Inputs] | None) -> Network:
        """The model to recognize with: where the preset says so, with averaged weights, and, unless `batches` is None,
        with statistics recalibrated on these training batches."""
        model = build(self.config.model).to(self.team.device)
        model.load_state_dict(self.model.state_dict() | self.average)
        if batches is not None:
            self._recalibrate(model, batches)
        return model.eval()

    @torch.no_grad()
    def _recalibrate(self, model: Network, batches: Iterable[Inputs]) -> None:
        """Measure the statistics of a network on `batches`: their mean, without dropout."""
        with recalibrated(model):
            for inputs in batches:
                self._loss(model, inputs)


def make_replays(team: Team, limit: int) -> Replays | None:
    """Recorded steps of at most `limit` shapes, none so far; None where steps are not recorded."""
    record = make_recorder(team)
    return Replays(record, limit) if limit and record else None


def make_recorder(team: Team) -> Record | None:
    """What records steps; None on a CPU, and with several processes, which exchange gradients within a step."""
    return CudaRecord() if team.device.type == "cuda" and team.world == 1 else None
