"""Training of a language model, resumable bit for bit from its last checkpoint, and perplexity.

Faithful to the authors' program: the gradient is that of the loss summed over the steps of a batch and averaged over
its sequences, clipped as a whole; the state goes on over batches and epochs; the rate falls as soon as validation
improves by less than 1.0; the last epoch's weights are tested, on the whole text as one sequence.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor, nn

from hmerbench.benchmarks.environment import best_device, environment, in_bf16
from hmerbench.benchmarks.errors import Diverged, UserError
from hmerbench.benchmarks.files import locked, remove_partial
from hmerbench.benchmarks.language_models.corpus import Corpus, columns
from hmerbench.benchmarks.language_settings import tied
from hmerbench.benchmarks.printing import err_console
from hmerbench.benchmarks.runs.run import LanguageRun
from hmerbench.benchmarks.training.checkpoint import load_checkpoint, resumed_in
from hmerbench.benchmarks.training.distributed import make_deterministic, seed_of
from hmerbench.models.language import LanguageModel, State, pack_language_model
from hmerbench.models.weights import pack_tensors

CHECKPOINT_SECONDS = 60  # between checkpoints within an epoch: the most work that a kill can lose
TEST_STEPS = 1000  # of the test text at once; a matter of speed alone
CHECKPOINT = "hmerbench-language-checkpoint-1"


@dataclass
class Position:
    """The progress of a run; together with the checkpoint's tensors, all that resuming needs."""

    digest: str
    rate: float
    epoch: int = 0  # the epoch in progress, from 0
    batch: int = 0  # batches done in this epoch
    step: int = 0  # batches done in all
    loss: float = 0.0  # sum over this epoch's words
    seconds: float = 0.0  # spent on this epoch
    perplexities: list[float] = field(default_factory=list)  # on the validation text, after each epoch


def train(run: LanguageRun, corpus: Corpus, on_epoch: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Train and test a run, resuming from its last checkpoint, if any.

    `on_epoch` is called with each epoch's line of the history once its checkpoint is written; an exception in it ends
    the training. Raises UserError for a corpus that is too short or another run's, for a folder of other settings or
    one in which another process trains, and Diverged for a loss that is no longer finite.
    """
    with locked(run.path):
        run.refuse_training()
        remove_partial(run.path)
        Trainer(run, corpus, on_epoch).run()


class Trainer:
    """One training: its text, network and progress."""

    def __init__(self, run: LanguageRun, corpus: Corpus, on_epoch: Callable[[dict[str, Any]], None] | None = None):
        self.folder, self.corpus, self.on_epoch = run, corpus, on_epoch
        self.settings, self.training = run.settings, run.settings.training
        if tied(self.settings, corpus.name, corpus.digest) != self.settings:
            raise UserError(f"{run.path}: it was trained on another corpus; give that one, or choose another folder")
        self.device = best_device()
        self.bf16 = in_bf16(self.training.bf16, self.device)
        make_deterministic()
        if self.training.threads and self.device.type == "cpu":
            torch.set_num_threads(self.training.threads)
        batch, steps = self.training.batch_size, self.training.steps
        words_NB, targets_NB = columns(corpus.splits["train"], batch, steps)
        for split in ("train", "valid"):
            if (length := len(corpus.splits[split])) < batch * steps:
                raise UserError(
                    f"the text {split} has {length} words, a batch {batch} x {steps}: give more text, or lower "
                    "training.batch_size or training.steps"
                )
        if not len(corpus.splits["test"]):
            raise UserError("the text test has no words; give more text")
        words_NB, targets_NB = words_NB.to(self.device), targets_NB.to(self.device)
        self.batches = list(zip(words_NB.split(steps), targets_NB.split(steps), strict=True))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)  # so the first weights depend only on the settings
            self.model = LanguageModel(self.settings.model, corpus.lexicon)
            self.model.initialize(self.training.initial)
        self.model.to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), fused=True)
        self.state = self.model.initial_state(batch)
        self.position = Position(self.settings.digest, self.training.rate)

    def run(self) -> None:
        """Train to the end, resuming from the last checkpoint, if any; then test."""
        resumed = self._resume()
        self.folder.write(self.folder.FILE, self.settings.to_yaml())
        here = environment(self.device)
        if not resumed:
            self.folder.write("environment.json", here)
            self.folder.write("history.jsonl", [])
            (self.folder.path / "scores.json").unlink(missing_ok=True)  # of an earlier training
        elif not self.folder.finished:
            self.folder.write("environment.json", resumed_in(self.folder.path, self.folder.environment, here))
            err_console.print(
                f"resuming {self.folder.path} at epoch {self.position.epoch + 1}, step {self.position.step}"
            )
        while self.position.epoch < self.training.epochs:
            self._epoch()
        if not self.folder.trained_here:
            self._finish()

    def _epoch(self) -> None:
        at, saved = self.position, time.perf_counter()
        self.model.train()
        with Progress(console=err_console, transient=True) as progress:
            task = progress.add_task(f"epoch {at.epoch + 1}", total=len(self.batches), completed=at.batch)
            while at.batch < len(self.batches):
                at.loss += self.step(*self.batches[at.batch])
                at.batch, at.step = at.batch + 1, at.step + 1
                progress.advance(task)
                now = time.perf_counter()
                if now - saved > CHECKPOINT_SECONDS and at.batch < len(self.batches):
                    at.seconds, saved = at.seconds + now - saved, now
                    self._check_weights()
                    self._save()
        at.seconds += time.perf_counter() - saved
        self._check_weights()
        began = time.perf_counter()
        words = len(self.batches) * self.batches[0][0].numel()
        line = {"epoch": at.epoch + 1, "step": at.step, "rate": at.rate, "train_perplexity": math.exp(at.loss / words)}
        line |= {"valid_perplexity": self._validated(), "seconds": round(at.seconds, 3)}
        line |= {"valid_seconds": round(time.perf_counter() - began, 3), "words_per_s": round(words / at.seconds, 1)}
        at.epoch, at.batch, at.loss, at.seconds = at.epoch + 1, 0, 0.0, 0.0
        # an epoch that is repeated after a kill replaces its old line
        earlier = [old for old in self.folder.history if old["epoch"] < line["epoch"]]
        self.folder.write("history.jsonl", [*earlier, line])
        self._save()
        done = f"epoch {line['epoch']}/{self.training.epochs}"
        err_console.print(f"{self.folder.title}: {done}, {self.folder.epoch_text(line)}")
        if self.on_epoch:
            self.on_epoch(line)

    def step(self, words_TB: Tensor, targets_TB: Tensor) -> float:
        """One step of gradient descent; returns the loss, summed over the words."""
        training, model = self.training, self.model
        torch.manual_seed(seed_of(self.settings.seed, self.position.step))  # of dropout
        state = self.state if training.carry_state else model.initial_state(training.batch_size)
        loss, self.state = model(words_TB, targets_TB, state, self.bf16)
        (loss / training.batch_size / (training.steps if training.loss == "mean" else 1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        self.optimizer.param_groups[0]["lr"] = self.position.rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        model.clear_padding()
        return self._finite(float(loss.detach()), "the loss is")

    def _check_weights(self) -> None:
        """Raise Diverged before weights that are not finite replace the last good checkpoint: a gradient that
        overflows in the last step leaves the loss finite."""
        for parameter in self.model.parameters():
            self._finite(float(parameter.detach().abs().amax()), "the weights are")

    def _finite(self, value: float, what: str) -> float:
        if math.isfinite(value):
            return value
        raise Diverged(
            f"{self.folder.path}: {what} no longer finite in epoch {self.position.epoch + 1}, step "
            f"{self.position.step}; the last checkpoint is kept: lower training.rate or training.clip "
            "(this makes it a new run)"
        )

    def _validated(self) -> float:
        """The validation perplexity; the rate falls if it improved too little, from the third epoch on."""
        training, at = self.training, self.position
        found = perplexity(self.model, self.corpus.splits["valid"], training.batch_size, training.steps, training.steps)
        at.perplexities.append(self._finite(found, "the validation perplexity is"))
        if len(at.perplexities) > 2 and at.perplexities[-2] - at.perplexities[-1] < training.improvement:
            at.rate *= training.decay
        return at.perplexities[-1]

    def _finish(self) -> None:
        test, began = self.corpus.splits["test"], time.perf_counter()
        found = self._finite(perplexity(self.model, test, 1, 1, TEST_STEPS), "the test perplexity is")
        self.folder.write("weights.safetensors", pack_language_model(self.model))
        scores = {"test_perplexity": found, "test_words": len(test)}
        scores |= {"valid_perplexity": self.position.perplexities[-1]}
        scores |= {"parameters": sum(parameter.numel() for parameter in self.model.parameters())}
        self.folder.write("scores.json", scores | {"test_seconds": round(time.perf_counter() - began, 3)})

    def _save(self) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"h.{layer}": h for layer, (h, _) in enumerate(self.state)}
        tensors |= {f"c.{layer}": c for layer, (_, c) in enumerate(self.state)}
        # tensors and position share one file, so they cannot disagree
        header = {"format": CHECKPOINT, "state": asdict(self.position)}
        self.folder.write("checkpoint.safetensors", pack_tensors(tensors, header))

    def _resume(self) -> bool:
        """Restore the last checkpoint; returns whether there was one. UserError if it is damaged or another run's."""
        checkpoint = load_checkpoint(self.folder, CHECKPOINT)
        if checkpoint is None:
            return False
        tensors, position = checkpoint
        model = {name.removeprefix("model."): x for name, x in tensors.items() if name.startswith("model.")}
        self.model.load_state_dict(model)
        state = {name: tensors[name].to(self.device) for name in tensors if not name.startswith("model.")}
        self.state = [(state[f"h.{layer}"], state[f"c.{layer}"]) for layer in range(len(self.state))]
        self.position = Position(**position)
        return True


@torch.no_grad()
def perplexity(model: LanguageModel, words_N: Tensor, batch: int, multiple: int, steps: int) -> float:
    """exp of the mean loss of a word, in float32, over `batch` pieces side by side, read `steps` words at a time.

    Each piece is cut to a multiple of `multiple` words. Puts the model into evaluation mode. NaN for a text shorter
    than one such piece each, infinite for a model that has diverged.
    """
    model.eval()
    vectors_VF = model.vectors(torch.arange(len(model.lexicon), device=model.device))
    words_NB, targets_NB = columns(words_N.to(model.device), batch, multiple)
    if not words_NB.numel():
        return math.nan
    state: State = model.initial_state(batch)
    total = 0.0
    for words_TB, targets_TB in zip(words_NB.split(steps), targets_NB.split(steps), strict=True):
        log_likelihoods_TB, state = model.log_likelihoods(words_TB, targets_TB, state, vectors_VF)
        total -= float(log_likelihoods_TB.double().sum())
    loss = total / words_NB.numel()
    return math.exp(loss) if loss < 709 else math.inf  # beyond what a float holds
