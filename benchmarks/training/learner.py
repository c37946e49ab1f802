"""A network in training by one of several processes: its gradients, its steps, and the weights to recognize with."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.batching import Batch, Inputs
from hmerbench.benchmarks.environment import in_bf16
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training import foreach
from hmerbench.benchmarks.training.checkpoint import flatten_optimizer, restore_optimizer
from hmerbench.benchmarks.training.cuda_graphs import CudaRecord, Replays
from hmerbench.benchmarks.training.distributed import Team, seed_of
from hmerbench.benchmarks.training.optimizer import average_decay, make_optimizer, update_average
from hmerbench.models.layers import running
from hmerbench.models.network import NO_WORD, Network, build
from hmerbench.models.vocab import Vocabulary
from hmerbench.models.weights import load_weights

START = "start.safetensors"  # in a run's folder: the weights that it starts from, those of another run


class Learner:
    """The network, its optimizer and its averaged weights. A step is `share` micro-batches, then an `update`."""

    def __init__(
        self,
        config: Config,
        team: Team,
        graphs: bool = False,
        vocabulary: Vocabulary | None = None,
        start: Network | None = None,
    ):
        """With `graphs`, steps are recorded; the words are CROHME's, unless others are given; the first weights are
        those of `start`, if any. Raises UserError if the processes of the team cannot share the micro-batches of a step
        evenly."""
        self.config, self.team, training = config, team, config.training
        if training.batching.micro_batches % team.world:
            raise UserError(
                f"micro-batches per step, {training.batching.micro_batches}, must be a multiple of the {team.world} "
                "processes; set training.batching.micro_batches"
            )
        self.share = training.batching.micro_batches // team.world  # micro-batches per process and step
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # so the first weights depend only on the settings
            self.model = build(config.model, vocabulary)
        if start is not None:
            begin_with(self.model, start)
        self.model.to(team.device)
        self.bf16 = in_bf16(training.bf16, team.device)
        # faster for bf16 convolutions and for matrix products in place of 1x1 ones, with the same results
        fast = self.bf16 or team.device.type == "cuda"
        self.layout = torch.channels_last if fast else torch.contiguous_format
        self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.distributed: nn.Module = self.model
        if team.world > 1:
            # otherwise buckets are rebuilt after the first step, also of a resumed training, and sums over three
            # or more processes are rounded differently
            self.distributed = DistributedDataParallel(self.model, find_unused_parameters=True)
            warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
        self.norms = batch_norms(self.model)
        self.replays = Replays(CudaRecord()) if graphs else None
        # running statistics after the first micro-batch of the latest step
        self.kept_statistics = [tensor.clone() for tensor in self._statistics()] if graphs else []
        averaged = self.model.named_parameters() if training.average else ()
        self.average = {name: parameter.detach().clone() for name, parameter in averaged}
        rate_on = team.device if graphs else None
        self.optimizer = make_optimizer(self.model, training.optimizer, self.bf16, rate_on)
        self.decay: float | Tensor = torch.zeros((), device=team.device) if graphs else 0.0  # of the averaged weights

    def train_mode(self, fixed: bool) -> None:
        """Prepare the network for training; with `fixed`, batch normalization reads its statistics and leaves them."""
        self.model.train()
        for norm in self.norms:
            norm.train(not fixed)

    def micro_step(self, inputs: Inputs, k: int, step: int) -> Tensor:
        """Add the gradient of this process's k-th micro-batch of a step, and return its loss.

        Running statistics are updated by the first micro-batch of a step only, as in the authors' training on four
        GPUs, where the buffers of rank 0 overwrite the others.
        """
        index = k * self.team.world + self.team.rank
        seed = seed_of(self.config.seed, step, index)  # of dropout
        if self.replays is not None:
            loss = self.replays.micro_step(partial(self._gradients, self.model), inputs, seed)
            # a recorded micro-batch always updates them
            self._keep_statistics() if index == 0 else self._put_back_statistics()
            return loss
        torch.manual_seed(seed)
        model = self.distributed  # exchanges gradients only in the last micro-batch of a step
        waits = model.no_sync() if isinstance(model, DistributedDataParallel) and k < self.share - 1 else nullcontext()
        with waits, nullcontext() if index == 0 else momentum(self.norms, 0.0):
            return self._gradients(model, inputs)

    def _gradients(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Add the gradient of one micro-batch, scaled to its share of a step, and return its loss."""
        loss = self._loss(model, inputs)
        (loss / self.share).backward()
        return loss.detach()

    def _keep_statistics(self) -> None:
        if self.kept_statistics:
            foreach.copy_(self.kept_statistics, self._statistics())

    def _put_back_statistics(self) -> None:
        if self.kept_statistics:
            foreach.copy_(self._statistics(), self.kept_statistics)

    def _statistics(self) -> list[Tensor]:
        return [tensor for norm in self.norms for tensor in running(norm)]

    def _loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        training, images = self.config.training, inputs.images.float() / 255
        device, cache = self.team.device.type, self.replays is None
        with torch.autocast(device, torch.bfloat16, enabled=self.bf16, cache_enabled=cache):
            images = images.contiguous(memory_format=self.layout)
            return model(images, inputs.mask, inputs.targets, training.label_smoothing)

    def update(self, step: int) -> None:
        """End step `step` (from 0): clip gradients, step the optimizer, clear gradients, update the average."""
        decay = average_decay(self.config.training.average, step)
        if self.replays is None:
            self.decay = decay
            self._update()
        else:
            assert isinstance(self.decay, Tensor)
            self.decay.fill_(decay)
            self.replays.update(self._update)

    def _update(self) -> None:
        if clip := self.config.training.optimizer.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.replays is None)
        update_average(self.average, self.model, self.decay)

    def tensors(self) -> dict[str, Tensor]:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.items()}
        return tensors | flatten_optimizer(self.optimizer)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `tensors()` returned."""
        self.model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
        for name, tensor in self.average.items():
            tensor.copy_(tensors[f"average.{name}"])
        restore_optimizer(self.optimizer, tensors)
        self._keep_statistics()

    def measure_statistics(self, batches: Iterable[Inputs]) -> None:
        """Replace the running statistics of batch normalization by those of training `batches`, read with the current
        weights, not the averaged ones. Before a step, `train_mode` must be called again."""
        if self.replays is not None:  # they hold steps in which each batch has statistics of its own
            self.replays = self.replays.anew(CudaRecord())
        self._recalibrate(self.model, batches)
        self._keep_statistics()

    def inference_model(self, batches: Iterable[Inputs] | None) -> Network:
        """The model to recognize with: where the preset says so, with averaged weights, and, unless `batches` is None,
        with statistics recalibrated on these training batches."""
        model = build(self.config.model, self.model.vocabulary).to(self.team.device)
        model.load_state_dict(self.model.state_dict() | self.average)
        if batches is not None:
            self._recalibrate(model, batches)
        return model.eval()

    @torch.no_grad()
    def _recalibrate(self, model: Network, batches: Iterable[Inputs]) -> None:
        """Measure the statistics of a network on `batches`: their mean, without dropout."""
        norms = batch_norms(model.eval())
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
        with momentum(norms, None):
            for inputs in batches:
                self._loss(model, inputs)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def momentum(norms: Sequence[_BatchNorm], value: float | None) -> Iterator[None]:
    """Set the momentum of running statistics inside: 0.0 freezes them, None averages over all batches."""
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = value
    try:
        yield
    finally:
        for norm, old in zip(norms, before, strict=True):
            norm.momentum = old


def first_weights(run: RunFolder) -> Network | None:
    """The network that a run starts from, which lies in its folder, so that it can be resumed wherever it is taken;
    None if it starts from scratch. Raises UserError or CheckpointError."""
    start, path = run.settings.start, run.path / START
    if not start.digest:
        return None
    if not path.is_file() or run.file_digest(START) != start.digest:
        raise UserError(f"{path}: is not the file of {start.weights} that this run starts from; give --from again")
    return load_weights(path, run.settings.model)


@torch.no_grad()
def begin_with(model: Network, start: Network) -> None:
    """Give a network the weights of another one whose words are the first of its own; rows of new words stay."""
    own = model.state_dict(keep_vars=True)
    for name, tensor in start.state_dict().items():
        rows = own[name] if own[name].shape == tensor.shape else own[name][: len(tensor)]
        rows.copy_(tensor)


@torch.inference_mode()
def loss_and_accuracy(model: Network, batches: Iterable[Batch]) -> tuple[float, float]:
    """Mean loss per word and accuracy of words in percent, each word given the true ones before it.

    Puts the model into evaluation mode; runs on the CPU, in float32.
    """
    model.eval()
    loss, correct, words = 0.0, 0, 0
    for batch in batches:
        images, mask = batch.views[0]
        logits, truth = model.teacher_forced(images.float() / 255, mask, model.targets(batch.tokens))
        loss += float(F.cross_entropy(logits.flatten(0, -2), truth.flatten(), reduction="sum"))
        correct += int((logits.argmax(-1) == truth).sum())
        words += int((truth != NO_WORD).sum())
    return loss / words, 100 * correct / words
