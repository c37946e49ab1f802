"""A small space for the tiny network, and a training that is none."""

from collections.abc import Callable
from typing import Any

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.errors import Diverged
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import merge
from hmerbench.benchmarks.tuning.space import Problem, pose
from tests.helpers.made_up import put_environment

SPACE = {
    "budget": {"training": {"epochs": 4}, "heldout": 0.3},
    "pruning": {"trials": 2, "epochs": 1},
    "startup": 3,
    "parameters": {
        "training.optimizer.lr": {"low": 0.001, "high": 0.1, "log": True},
        "training.label_smoothing": {"low": 0.0, "high": 0.3},
        "model.dc": {"choices": [2, 4]},
        "model.dim_feedforward": {"low": 16, "high": 64, "step": 16},
        "augmentation.scale": {"choices": [None, [0.7, 1.4]]},
    },
}


def fake_train(run: RunFolder, _: Any, on_epoch: Callable[[dict], None], samples: list[Sample] | None) -> None:
    """A fake training whose result improves as lr approaches 0.03 and with more label smoothing."""
    run.write("config.yaml", run.settings.to_yaml())
    put_environment(run.path)
    training = run.settings.training
    final = 50 * (1 - abs(training.optimizer.lr - 0.03) / 0.1) + 100 * training.label_smoothing
    for epoch in range(len(run.history) + 1, training.epochs + 1):
        if training.optimizer.lr > 0.09:
            raise Diverged("the loss is no longer finite")
        line = {"epoch": epoch, "step": epoch, "loss": 1.0, "lr": 0.1, "seconds": 0.1, "images_per_s": 1.0}
        line |= {"val_token_exprate": final * epoch / training.epochs}
        run.write("history.jsonl", [*run.history, line])
        run.write("checkpoint.json", {"finished": False, "epoch": epoch})
        on_epoch(line)
    run.write("checkpoint.json", {"finished": True, "epoch": training.epochs})


def with_(**changes: Any) -> dict[str, Any]:
    return merge(SPACE, changes)


def posed(given: dict[str, Any]) -> Problem:
    """The problem that these options of a study pose."""
    return pose(given["recipe"], given["preset"], given["seed"], open_archive(given["crohme"]), given["space"])
