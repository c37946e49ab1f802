"""Training: plain torch, one process or several (torchrun), resumable bit for bit at any checkpoint.

Reads a verified archive, leaves a run folder: config.yaml, environment.json, history.jsonl (one line per epoch),
checkpoint.safetensors (to resume from) and best.safetensors (to recognize with).
"""

import gc
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

from benchmarks.config import SCHEMA, Config, check_folder
from benchmarks.data.archive import Archive
from benchmarks.data.batching import Inputs, ahead
from benchmarks.data.samples import Sample
from benchmarks.environment import environment
from benchmarks.errors import Diverged, UserError, shortage
from benchmarks.files import only_one
from benchmarks.printing import aside
from benchmarks.recognition.predict import recognize
from benchmarks.runs.folder import RunFolder
from benchmarks.training.checkpoint import (
    flatten_optimizer,
    load_checkpoint,
    restore_optimizer,
    save_checkpoint,
    take_over,
)
from benchmarks.training.cuda_graphs import CudaRecord, Record, Replays, own_stream
from benchmarks.training.loss import token_loss
from benchmarks.training.optimizer import make_optimizer, set_rate, update_average
from benchmarks.training.progress import Report
from benchmarks.training.statistics import batch_norms, measured_again, momentum
from benchmarks.training.team import Team, repeatable
from benchmarks.training.training_data import training_data
from models import CoMER
from models.weights import pack_weights

CHECKPOINT_SECONDS = 60  # at most this much work is lost by a kill in the middle of a long epoch
LATEST_SHARE = 0.02  # of a training goes at most into weights that a training cut short leaves,
LATEST_SECONDS = 60  # which are as old as this at least when they are replaced
CHECK_STEPS = 25  # the loss is read back from the device this often

OnEpoch = Callable[[dict[str, Any]], None]


@dataclass
class State:
    """Where a run stands; with the checkpoint's tensors this is all there is to resume from."""

    digest: str
    epoch: int = 0  # the epoch in progress, from 0
    position: int = 0  # optimizer steps already done in it
    step: int = 0  # optimizer steps in all
    loss: float = 0.0  # sum of the losses of this epoch's micro-batches on rank 0
    seconds: float = 0.0  # of training so far, validation included
    best: float = -1.0  # token-match ExpRate of the selected epoch
    best_epoch: int = -1
    stale: int = 0  # validations since
    lr: float = 0.0  # plateau only
    plateau: dict[str, Any] | None = None
    finished: bool = False


def train(
    run: RunFolder, archive: Archive, on_epoch: OnEpoch | None = None, samples: list[Sample] | None = None
) -> None:
    """Trains a run on `archive`, from its last checkpoint where there is one; not at all where a finished run beside it
    differs in its search alone and `select` is last.

    `samples` are learnt instead of the archive's training set, and then `config.data.limit` does not limit them.
    `on_epoch` is given each epoch's line of the history once its checkpoint lies there; what it raises ends the
    training. Raises UserError for a run of other settings, a damaged checkpoint, or a folder in which another process
    trains; Diverged (one, too) for a loss that is no longer finite.
    """
    config, folder = run.settings, run.path
    if config.schema_version != SCHEMA:
        raise UserError(
            f"{folder}: made under version {config.schema_version} of the settings, this suite has {SCHEMA}: its "
            "results stay readable, but it is not trained further; name recipe, preset and seed to train it again"
        )
    team = Team.gather()
    with only_one(folder) if team.rank == 0 else nullcontext():
        check_folder(config, folder)
        if team.rank == 0 and samples is None and (source := take_over(run)):
            aside.print(f"{folder}: differs from {source} in its search alone, so that run's weights are taken")
        team.wait()
        repeatable(team, config.training.threads)
        Trainer(run, archive, team, on_epoch, samples).run()


class Trainer:
    """One training: its data, network and optimizer, and where it stands (`state`)."""

    def __init__(
        self,
        run: RunFolder,
        archive: Archive,
        team: Team,
        on_epoch: OnEpoch | None = None,
        samples: list[Sample] | None = None,
    ):
        self.folder, self.team, self.on_epoch = run, team, on_epoch
        self.config = config = run.settings
        training, cuda = config.training, team.device.type == "cuda"
        if training.batching.micro_batches % team.world:
            raise UserError(
                f"{team.world} processes cannot share {training.batching.micro_batches} micro-batches a step: "
                "set training.batching.micro_batches to a multiple"
            )
        self.share = training.batching.micro_batches // team.world  # of each process, in a step
        self.set, self.validation = training_data(config, archive, samples, team.device)
        self.model = initialized(config).to(team.device)
        # convolutions in bf16 want it, and products that stand for those of 1x1; the numbers are the same
        self.layout = torch.channels_last if training.bf16 or cuda else torch.contiguous_format
        self.model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.parallel = DistributedDataParallel(self.model) if team.world > 1 else self.model
        self.norms = batch_norms(self.model)
        record = recorder(team)
        self.replays = Replays(self._gradients, record, training.graphs) if training.graphs and record else None
        averaged = self.model.named_parameters() if training.average else ()
        self.average = {name: parameter.detach().clone() for name, parameter in averaged}
        self.optimizer = make_optimizer(self.model, training.optimizer)
        schedule, self.plateau = training.schedule, None
        if schedule.name == "plateau":
            self.plateau = ReduceLROnPlateau(self.optimizer, "max", schedule.factor, schedule.patience)
        self.state = State(config.digest)
        self.next_weights = LATEST_SECONDS  # the second of training at which weights are written next

    # ------------------------------------------------------------------------------------------------ the loop

    def run(self) -> None:
        """Trains to the end, from the last checkpoint where there is one."""
        self._resume()
        if self.state.finished:
            return
        if self.team.rank == 0:
            self.folder.write("config.yaml", self.config.to_yaml())
            self.folder.write("environment.json", environment(self.team.device))
        if self.replays and self.folder.state is None:
            self._save()  # to resume from where recordings must be given up in the first minute
        gc.freeze()  # what is here stays; looking through it again and again takes a twentieth of a step
        training, stream = self.config.training, own_stream(self.team.device) if self.replays else nullcontext()
        with stream, Report(self.config, self.state.epoch, quiet=self.team.rank > 0) as report:
            while self.state.epoch < training.epochs and self.state.stale < (training.early_stop or math.inf):
                try:
                    self._epoch(report)
                    continue
                except torch.OutOfMemoryError as error:  # which holds on to the step's tensors while it is handled
                    lacking = shortage(error)
                self._make_room(lacking)
        self._finish()

    def _make_room(self, lacking: str) -> None:
        """Gives up recorded steps, whose memory others need, and resumes; UserError where that is no help."""
        if self.replays is None or not (recorded := self.replays.give_up()):
            raise UserError(
                f"{self.folder.path}: {lacking}; with training.batching.pixels or size halved and micro_batches "
                "doubled a step takes half the memory (that is another run), and what was trained so far is kept"
            )
        aside.print(f"{lacking}: {recorded} recorded steps are given up for it")
        self.optimizer.zero_grad()  # of the step that was cut short
        self._resume()

    def _epoch(self, report: Report) -> None:
        state, training, team = self.state, self.config.training, self.team
        plan, micro_batches = next(self.plans), training.batching.micro_batches
        steps, left = len(plan) // micro_batches, plan[state.position * micro_batches :]
        mine = left[team.rank :: team.world]
        batches = ahead(partial(self.set.prepare, state.epoch), mine, training.workers)
        began = saved = time.perf_counter()
        loss_sum = torch.tensor(state.loss, dtype=torch.float64, device=team.device)  # read back now and then
        self.model.train()
        report.epoch(state.epoch, steps, state.position)
        while state.position < steps:
            progress = (state.epoch + state.position / steps) / training.epochs
            rate = set_rate(self.optimizer, training.schedule, training.optimizer.lr, progress)
            losses = [self.micro_step(batch, k) for k, batch in zip(range(self.share), batches, strict=False)]
            if training.optimizer.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), training.optimizer.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=self.replays is None)
            update_average(self.average, self.model, training.average, state.step)
            state.position += 1
            state.step += 1
            loss_sum += torch.stack(losses).double().sum()
            if state.position % CHECK_STEPS == 0 or state.position == steps:
                report.step(state.position, self._finite(loss_sum) / (state.position * self.share))
            now = time.perf_counter()
            if now - saved > CHECKPOINT_SECONDS and state.position < steps:
                state.loss, state.seconds = float(loss_sum), state.seconds + now - saved
                saved = now
                self._save()
        seconds = time.perf_counter() - began
        state.loss, state.seconds = 0.0, state.seconds + time.perf_counter() - saved
        mean = float(team.sum(loss_sum.clone())) / (steps * micro_batches)
        line = {"epoch": state.epoch + 1, "step": state.step, "loss": round(mean, 6), "lr": rate}
        line |= {"seconds": round(seconds, 3), "images_per_s": round(sum(map(len, left)) / seconds, 2)}
        state.epoch, state.position = state.epoch + 1, 0
        self._end_epoch(line, report)

    def _end_epoch(self, line: dict[str, Any], report: Report) -> None:
        """Validates, and leaves the epoch's line of the history, a checkpoint and weights."""
        line |= self._validate()
        if self.team.rank == 0:  # lines of an epoch that is trained again after a kill are replaced
            kept = [old for old in self.folder.history if old["epoch"] < line["epoch"]]
            self.folder.write("history.jsonl", [*kept, line])
        report.line(line)
        self._save()
        self._leave_weights()
        if self.on_epoch and self.team.rank == 0:
            self.on_epoch(line)

    def micro_step(self, prepared: Any, k: int) -> torch.Tensor:
        """Adds the gradient of this process's k-th micro-batch of a step, and returns its loss."""
        inputs, index = self.set.inputs(prepared), k * self.team.world + self.team.rank
        # dropout depends on (seed, step, micro-batch) alone
        key = np.random.SeedSequence((self.config.seed, self.state.step, index)).generate_state(1, np.uint64)
        seed = int(key[0] >> 1)
        if self.replays is not None:
            return self.replays(inputs, index == 0, seed)
        torch.manual_seed(seed)
        model = self.parallel  # which exchanges gradients in the last micro-batch of a step
        with model.no_sync() if isinstance(model, DistributedDataParallel) and k < self.share - 1 else nullcontext():
            return self._gradients(inputs, index == 0)

    def _gradients(self, inputs: Inputs, first: bool) -> torch.Tensor:
        """Adds those of one micro-batch, by its share of a step, and returns its loss."""
        # running statistics follow the first micro-batch of a step alone, as rank 0's do in the authors' four-GPU
        # training, where its buffers overwrite the other ranks'
        with nullcontext() if first else momentum(self.norms, 0.0):
            loss = self._loss(self.parallel, inputs)
        (loss / self.share).backward()
        return loss.detach()

    def _loss(self, model: nn.Module, inputs: Inputs) -> torch.Tensor:
        training, images = self.config.training, inputs.images.float() / 255
        device, cache = self.team.device.type, self.replays is None
        with torch.autocast(device, torch.bfloat16, enabled=training.bf16, cache_enabled=cache):
            logits = model(images.contiguous(memory_format=self.layout), inputs.mask, inputs.tokens)
        return token_loss(logits, inputs.targets, training.label_smoothing)

    def _finite(self, loss_sum: torch.Tensor) -> float:
        if math.isfinite(value := float(loss_sum)):
            return value
        raise Diverged(
            f"{self.folder.path}: the loss is no longer finite in epoch {self.state.epoch + 1}, step "
            f"{self.state.step}; the checkpoint before it is kept: lower training.optimizer.lr or set "
            "training.optimizer.clip"
        )

    # ------------------------------------------------------------------------------------- validation and weights

    def _validate(self) -> dict[str, Any]:
        """Every `validate_every` epochs: token-match ExpRate on the selection set; keeps the best weights."""
        training, state = self.config.training, self.state
        last = state.epoch == training.epochs
        if self.config.select == "last" or (state.epoch % training.validate_every and not last):
            return {}
        began, score = time.perf_counter(), torch.zeros((), dtype=torch.float64, device=self.team.device)
        if self.team.rank == 0:
            model = self._selected_weights()
            found = recognize(model, self.config, self.validation, self.team.device, "validation")
            right = sum(found.get(s.id, ((),))[0] == s.tokens for s in self.validation)
            score += 100 * right / len(self.validation)
            if float(score) > state.best:
                self.folder.write("best.safetensors", pack_weights(model))
        rate = float(self.team.sum(score))
        state.stale += 1
        if rate > state.best:
            state.best, state.best_epoch, state.stale = rate, state.epoch, 0
        if self.plateau:
            self.plateau.step(rate)
        seconds = time.perf_counter() - began
        state.seconds += seconds
        return {"val_token_exprate": round(rate, 4), "val_seconds": round(seconds, 3)}

    @torch.no_grad()
    def _selected_weights(self) -> CoMER:
        """The model as it will recognize: averaged weights, and statistics measured again over training batches without
        dropout (the mean over the batches), where the preset asks for them."""
        model, training = CoMER(self.config.model).to(self.team.device), self.config.training
        model.load_state_dict(self.model.state_dict() | self.average)
        if training.recalibrate:
            plan = self.set.plan(training.epochs)[: training.recalibrate]
            with measured_again(model):
                for batch in ahead(partial(self.set.prepare, training.epochs), plan, training.workers):
                    self._loss(model, self.set.inputs(batch))
        return model.eval()

    # ---------------------------------------------------------------------------------- files, progress, the end

    def _save(self) -> None:
        if self.team.rank == 0:
            if self.plateau:
                self.state.plateau = {k: v for k, v in self.plateau.state_dict().items() if isinstance(v, int | float)}
                self.state.lr = self.optimizer.param_groups[0]["lr"]
            tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
            tensors |= {f"average.{name}": tensor for name, tensor in self.average.items()}
            save_checkpoint(self.folder, tensors | flatten_optimizer(self.optimizer), asdict(self.state))
        self.team.wait()

    def _resume(self) -> None:
        if found := load_checkpoint(self.folder):
            tensors, self.state = found[0], State(**found[1])
            self.model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
            for name, tensor in self.average.items():
                tensor.copy_(tensors[f"average.{name}"])
            restore_optimizer(self.optimizer, tensors)
            if self.plateau and self.state.plateau:
                self.plateau.load_state_dict(self.state.plateau)
                for group in self.optimizer.param_groups:
                    group["lr"] = self.state.lr
            if not self.state.finished:
                aside.print(f"resuming {self.folder.path} at epoch {self.state.epoch + 1}, step {self.state.step}")
        elif self.team.rank == 0:
            self.folder.write("history.jsonl", [])
        # the next epoch is planned while one is trained
        self.plans = ahead(self.set.plan, range(self.state.epoch, self.config.training.epochs), workers=1, depth=1)

    def _leave_weights(self) -> None:
        """latest.safetensors: what it would recognize with if it ended here (averaged, recalibrated, float16)."""
        due = self.state.seconds >= self.next_weights and self.state.epoch < self.config.training.epochs
        if self.team.rank == 0 and due and self.config.select == "last":
            began = time.perf_counter()
            self.folder.write("latest.safetensors", pack_weights(self._selected_weights().half()))
            took = time.perf_counter() - began
            self.next_weights = self.state.seconds + max(LATEST_SECONDS, took / LATEST_SHARE)

    def _finish(self) -> None:
        if self.team.rank == 0 and self.config.select == "last":
            self.folder.write("best.safetensors", pack_weights(self._selected_weights()))
            self.state.best_epoch = self.state.epoch
            (self.folder.path / "latest.safetensors").unlink(missing_ok=True)
        self.state.finished = True
        self._save()


def initialized(config: Config) -> CoMER:
    """The network before its first step, which depends on the settings alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return CoMER(config.model)


def recorder(team: Team) -> Record | None:
    """What records training steps here: nothing on a CPU, nor where processes exchange gradients within one."""
    return CudaRecord() if team.device.type == "cuda" and team.world == 1 else None
