"""Training in plain torch, by one process or several (torchrun), resumable bit for bit from any checkpoint.

Reads a verified archive and writes a run folder: config.yaml, environment.json, history.jsonl (one line per epoch),
checkpoint.safetensors (to resume from) and best.safetensors (to recognize with).
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.batching import Inputs
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.environment import Execution, environment
from hmerbench.benchmarks.errors import Diverged, UserError, lacks_memory, out_of_memory_reason
from hmerbench.benchmarks.files import locked, remove_partial
from hmerbench.benchmarks.printing import TrainingProgress, err_console
from hmerbench.benchmarks.recognition.predict import ConfiguredSearcher, read_right
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runtime import CORES
from hmerbench.benchmarks.training.checkpoint import load_checkpoint, resumed_in, save_checkpoint
from hmerbench.benchmarks.training.cuda_graphs import own_stream
from hmerbench.benchmarks.training.distributed import Team, make_deterministic
from hmerbench.benchmarks.training.learner import Learner, first_weights
from hmerbench.benchmarks.training.optimizer import assign_rate, set_rate
from hmerbench.benchmarks.training.training_data import prepared, training_data, worker_lost
from hmerbench.models.network import Network
from hmerbench.models.weights import pack_weights

CHECKPOINT_SECONDS = 60  # between checkpoints within an epoch: the most work that a kill can lose
CANDIDATE = "candidate-{}.safetensors"  # best weights so far, of an epoch that has no checkpoint yet
CHECK_STEPS = 25  # the loss is read back from the device once per this many steps

OnEpoch = Callable[[dict[str, Any]], None]


@dataclass
class State:
    """The progress of a run; together with the checkpoint's tensors, all that resuming needs."""

    digest: str
    epoch: int = 0  # the epoch in progress, from 0
    position: int = 0  # optimizer steps done in this epoch
    step: int = 0  # optimizer steps in all
    loss: float = 0.0  # sum over this epoch's micro-batches
    seconds: float = 0.0  # spent on earlier epochs, including validation
    epoch_seconds: float = 0.0  # spent on this epoch
    best: float = -1.0  # token-match ExpRate of the selected epoch
    best_epoch: int = -1
    stale: int = 0  # validations since then
    lr: float = 0.0  # after the warmup; plateau only
    plateau: dict[str, Any] | None = None
    finished: bool = False
    vocabulary: str = ""  # digest of the words, "" in a checkpoint from before this field


def train(
    run: RunFolder, archive: Archive, on_epoch: OnEpoch | None = None, samples: list[Sample] | None = None
) -> None:
    """Train a run on `archive`, resuming from its last checkpoint, if any.

    `samples` replace the archive's training set and are not subject to `config.data.limit`. `on_epoch` is called with
    each epoch's line of the history once its checkpoint is written; an exception in it ends the training. Raises
    UserError for a folder of other or older settings or in which another process trains, a damaged checkpoint, or lack
    of memory; its subclass Diverged for a loss or weights no longer finite.
    """
    path, team = run.path, Team.gather()
    # workers of a killed training end a moment after it, and have its lock until then
    with locked(path, seconds=2) if team.rank == 0 else nullcontext():
        run.refuse_training()
        if team.rank == 0:
            remove_partial(path)
        team.wait()
        make_deterministic()
        Trainer(run, archive, team, on_epoch, samples).run()
    if team.device.type == "cuda":
        torch.cuda.empty_cache()  # for those that read next


class Trainer:
    """One training: its data, what learns from them, and its progress (`state`)."""

    def __init__(
        self,
        run: RunFolder,
        archive: Archive,
        team: Team,
        on_epoch: OnEpoch | None = None,
        samples: list[Sample] | None = None,
        execution: Execution | None = None,
    ):
        """By default, `execution` is chosen by the device."""
        self.folder, self.team, self.on_epoch = run, team, on_epoch
        self.config = config = run.settings
        self.execution = execution or Execution.on(team.device, team.world)
        start = first_weights(run)
        vocabulary = start.vocabulary.extended(archive.words) if start else archive.vocabulary
        self.learner = Learner(config, team, self.execution.graphs, vocabulary, start)
        self.training_set, self.validation = training_data(config, archive, samples, team.device, self.learner.model)
        schedule, self.plateau = config.training.schedule, None
        if schedule.name == "plateau":
            self.plateau = ReduceLROnPlateau(self.learner.optimizer, "max", schedule.factor, schedule.patience)
        digest = self.learner.model.vocabulary.digest
        self.state = State(config.digest, lr=config.training.optimizer.lr, vocabulary=digest)

    # ------------------------------------------------------------------------------------------------ the loop

    def run(self) -> None:
        """Train to the end, resuming from the last checkpoint, if any."""
        resumed = self._resume()
        if self.state.finished:
            self._restore_weights()
            return
        search = self.config.search
        if self.team.rank == 0 and (search.language.weights or search.together.runs):  # fail now if they do not fit
            ConfiguredSearcher(self.learner.inference_model(None), self.config, self.team.device)
        if self.team.rank == 0:
            self.folder.write("config.yaml", self.config.to_yaml())
            self._write_environment(resumed)
        if self.learner.replays and not resumed:
            self._save()  # to resume from if recordings must be given up in the first minute
        training = self.config.training
        stream = own_stream(self.team.device) if self.learner.replays else nullcontext()
        quiet = self.team.rank > 0
        with stream, TrainingProgress(self.config.name, training.epochs, self.state.epoch, quiet) as report:
            while self.state.epoch < training.epochs and self.state.stale < (training.early_stop or math.inf):
                if reason := self._epoch_or_lack_of_memory(report):
                    self._free_memory(reason)
        self._finish()

    def _epoch_or_lack_of_memory(self, report: TrainingProgress) -> str | None:
        """Train an epoch, or return why memory ran out: not the error itself, whose traceback holds tensors."""
        try:
            self._epoch(report)
        except RuntimeError as error:
            if "DataLoader worker" in str(error):  # raised wherever this process is when one dies
                raise UserError(f"{self.folder.path}: {worker_lost(error)}") from error
            if not lacks_memory(error):
                raise
            return out_of_memory_reason(error)
        return None

    def _write_environment(self, resumed: bool) -> None:
        """Record where training begins (threads: of all processes), and, if it is resumed elsewhere, that, too."""
        here = environment(self.team.device) | asdict(self.execution)
        here |= {"start": self.config.start.model_dump()} if self.config.start.digest else {}
        began = self.folder.environment if resumed else {}
        here["threads"] *= self.team.world
        self.folder.write("environment.json", resumed_in(self.folder.path, began, here))

    def _free_memory(self, reason: str) -> None:
        """Give up recorded steps to free their memory, and resume; UserError if there are none."""
        if self.learner.replays is None or not (recorded := self.learner.replays.give_up()):
            fewer = "train fewer runs at a time (JOBS=, --workers), or " if CORES in os.environ else ""
            raise UserError(
                f"{self.folder.path}: {reason}; {fewer}halve training.batching.pixels or size and double micro_batches "
                "to halve the memory of a step (this makes it a new run); what was trained so far is kept"
            )
        err_console.print(f"{reason}: {recorded} recorded steps are given up to free memory")
        self.learner.optimizer.zero_grad()  # gradients of the interrupted step
        self._resume()
        self.execution = replace(self.execution, graphs=False)
        self._write_environment(resumed=True)

    def _epoch(self, report: TrainingProgress) -> None:
        state, training, team, learner = self.state, self.config.training, self.team, self.learner
        plan, micro_batches = self.training_set.plan(state.epoch), training.batching.micro_batches
        steps = len(plan) // micro_batches
        numbers = plan[state.position * micro_batches + team.rank :: team.world]
        batches = prepared(self.training_set, state.epoch, numbers, self.execution.workers)
        saved = time.perf_counter()
        # of this process; summed over all and read back only every CHECK_STEPS
        loss_sum = torch.tensor(state.loss * (team.rank == 0), dtype=torch.float64, device=team.device)
        if state.epoch == training.first_fixed and state.position == 0:
            learner.measure_statistics(self._statistics_batches())
        learner.train_mode(fixed=state.epoch >= training.first_fixed)
        if learner.replays:
            learner.replays.retry()
        report.epoch(state.epoch, steps, state.position)
        while state.position < steps:
            progress = (state.epoch + state.position / steps) / training.epochs
            peak = state.lr if self.plateau else training.optimizer.lr
            rate = set_rate(learner.optimizer, training.schedule, peak, progress)
            mine = map(self.training_set.inputs, islice(batches, learner.share))
            losses = [learner.micro_step(inputs, k, state.step) for k, inputs in enumerate(mine)]
            learner.update(state.step)
            state.position += 1
            state.step += 1
            loss_sum += torch.stack(losses).double().sum()
            if state.position % CHECK_STEPS == 0 or state.position == steps:
                report.step(state.position, self._finite(loss_sum) / (state.position * micro_batches))
            now = time.perf_counter()
            if state.position < steps and self._checkpoint_due(now - saved):
                state.loss, state.epoch_seconds = self._finite(loss_sum), state.epoch_seconds + now - saved
                saved = now
                self._check_weights()
                self._save()
        seconds = state.epoch_seconds + time.perf_counter() - saved
        state.loss, state.epoch_seconds, state.seconds = 0.0, 0.0, state.seconds + seconds
        mean = self._finite(loss_sum) / (steps * micro_batches)
        self._check_weights()
        line = {"epoch": state.epoch + 1, "step": state.step, "loss": round(mean, 6), "lr": rate}
        line |= {"seconds": round(seconds, 3), "images_per_s": round(sum(map(len, plan)) / seconds, 2)}
        state.epoch, state.position = state.epoch + 1, 0
        self._end_epoch(line, report)

    def _end_epoch(self, line: dict[str, Any], report: TrainingProgress) -> None:
        """Validate, then write the epoch's line of the history, a checkpoint and weights."""
        line |= self._validate()
        if self.team.rank == 0:  # an epoch that is repeated after a kill replaces its old line
            earlier = [old for old in self.folder.history if old["epoch"] < line["epoch"]]
            self.folder.write("history.jsonl", [*earlier, line])
        report.line(line)
        self._save()
        self._adopt_candidate()
        if self.on_epoch and self.team.rank == 0:
            self.on_epoch(line)

    def _checkpoint_due(self, seconds: float) -> bool:
        """Whether to write a checkpoint within the epoch, `seconds` after the last; several processes agree on it."""
        if self.team.world > 1 and self.state.position % CHECK_STEPS:  # between these steps none waits for another
            return False
        return self.team.decide(seconds > CHECKPOINT_SECONDS)

    def _finite(self, loss_sum: torch.Tensor) -> float:
        """The sum over all processes, which must be finite."""
        if math.isfinite(value := float(self.team.sum(loss_sum.clone()))):
            return value
        raise self._diverged("the loss is")

    def _check_weights(self) -> None:
        """Raise Diverged before weights that are not finite replace the last good checkpoint: a gradient that
        overflows in the last step leaves the loss finite."""
        if not all(parameter.isfinite().all() for parameter in self.learner.model.parameters()):
            raise self._diverged("the weights are")

    def _diverged(self, what: str) -> Diverged:
        return Diverged(
            f"{self.folder.path}: {what} no longer finite in epoch {self.state.epoch + 1}, step "
            f"{self.state.step}; the last checkpoint is kept: lower training.optimizer.lr or set "
            "training.optimizer.clip (this makes it a new run)"
        )

    # ------------------------------------------------------------------------------------- validation and weights

    def _validate(self) -> dict[str, Any]:
        """Every `validate_every` epochs, measure token-match ExpRate on the selection set and keep the best weights."""
        training, state = self.config.training, self.state
        last = state.epoch == training.epochs  # here, epochs are counted that have ended
        if self.config.select == "last" or (state.epoch % training.validate_every and not last):
            return {}
        began, score = time.perf_counter(), torch.zeros((), dtype=torch.float64, device=self.team.device)
        if self.team.rank == 0:
            model = self._inference_model()
            right = read_right(model, self.config, self.validation, self.team.device, "validation")
            score += 100 * len(right) / len(self.validation)
            if float(score) > state.best:
                self.folder.write(CANDIDATE.format(state.epoch), pack_weights(model))
        rate = float(self.team.sum(score))
        state.stale += 1
        if rate > state.best:
            state.best, state.best_epoch, state.stale = rate, state.epoch, 0
        if self.plateau:
            assign_rate(self.learner.optimizer, state.lr)
            self.plateau.step(rate)
            state.lr = float(self.learner.optimizer.param_groups[0]["lr"])
        seconds = time.perf_counter() - began
        state.seconds += seconds
        return {"val_token_exprate": round(rate, 4), "val_seconds": round(seconds, 3)}

    def _inference_model(self) -> Network:
        """The network as it is at the end of an epoch, to recognize with."""
        training = self.config.training
        fixed = self.state.epoch > training.first_fixed  # statistics that it was trained with are not measured again
        return self.learner.inference_model(self._statistics_batches() if training.recalibrate and not fixed else None)

    def _statistics_batches(self) -> Iterator[Inputs]:
        """The batches, of an epoch that is never trained, on which batch-norm statistics are measured."""
        training = self.config.training
        plan = self.training_set.plan(training.epochs)[: training.recalibrate]
        batches = prepared(self.training_set, training.epochs, plan, self.execution.workers)
        return map(self.training_set.inputs, batches)

    # ---------------------------------------------------------------------------------- files, progress, the end

    def _save(self) -> None:
        if self.team.rank == 0:
            if self.plateau:
                numbers = {k: v for k, v in self.plateau.state_dict().items() if isinstance(v, int | float)}
                self.state.plateau = {k: v for k, v in numbers.items() if math.isfinite(v)}  # JSON has no infinity
            save_checkpoint(self.folder, self.learner.tensors(), asdict(self.state))
        self.team.wait()

    def _resume(self) -> bool:
        """Restore the last checkpoint and return True, or begin a history."""
        checkpoint = load_checkpoint(self.folder)
        if checkpoint is None:
            if self.team.rank == 0:
                self.folder.write("history.jsonl", [])
            return False
        (tensors, state), vocabulary = checkpoint, self.state.vocabulary
        if state.get("vocabulary", "") not in ("", vocabulary):
            raise UserError(
                f"{self.folder.path}: it was trained with other words; restore its data or models/dictionary.txt, "
                "or choose another folder (RESULTS=, --results)"
            )
        self.learner.restore(tensors)
        self.state = State(**state)
        self.state.vocabulary = vocabulary
        if self.plateau and self.state.plateau:
            self.plateau.load_state_dict(self.state.plateau)
        if self.team.rank == 0:  # again: a kill may have come between the two files
            self.folder.write("checkpoint.json", state)
        if not self.state.finished:
            where = f"epoch {self.state.epoch + 1}, step {self.state.step}"
            err_console.print(f"resuming {self.folder.path} at {where}")
        self._adopt_candidate()
        return True

    def _adopt_candidate(self) -> None:
        """Make a candidate the best weights if the checkpoint is that of its epoch; any other is of a lost epoch."""
        if self.team.rank > 0:
            return
        if (best := self.folder.path / CANDIDATE.format(self.state.best_epoch)).exists():
            os.replace(best, self.folder.weights_file)
        for lost in self.folder.path.glob(CANDIDATE.format("*")):
            lost.unlink()

    def _restore_weights(self) -> None:
        """Write the weights of a finished training again if they are gone. Raises UserError if that is impossible."""
        if self.team.decide(not self.folder.weights_file.exists()):
            if self.config.select != "last":
                raise UserError(
                    f"{self.folder.weights_file}: the best epoch's weights are gone; --force (FORCE=1) trains the run "
                    "again"
                )
            self._finish()

    def _finish(self) -> None:
        if self.team.rank == 0 and self.config.select == "last":
            self.folder.write("best.safetensors", pack_weights(self._inference_model()))
            self.state.best_epoch = self.state.epoch
        if self.team.rank == 0 and not self.state.finished:  # what was read with the weights that --force replaced
            self.folder.drop_results()
        self.state.finished = True
        self._save()
