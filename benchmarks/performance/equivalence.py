"""`hmerbench equivalence`: the ways to compute a training, compared with what rounding alone does to it.

The ways are compared on the same short training, a preset's with fewer expressions and epochs: every loss and the final
weights with those of `plain`. The weights of a way that computes the same training differ from plain's about as much as
those of `disturbed`, or less; more than twice as much is an error. A loss is a single number, and decides nothing.
- plain: batches made by the training itself, kernel by kernel
- workers: batches made by processes, bit for bit the same
- recorded (GPU): steps and updates replayed from CUDA graphs, batches made by processes
- cpu (GPU): plain, on the processor of the same machine
- disturbed: plain, from first weights changed by 6e-8 of their values at random, the rounding unit of float32
In results/speed/equivalence.csv, `loss` is that of the last epoch, `loss_difference` the largest of an epoch, relative;
`weights_difference` is |weights - plain| / |plain|, of all weights that are read with.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.environment import Execution, environment
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance.bench import versions
from hmerbench.benchmarks.printing import show
from hmerbench.benchmarks.report.documents import update_table
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training.distributed import Team, make_deterministic
from hmerbench.benchmarks.training.trainer import Trainer

Row = dict[str, Any]
ROUNDING = 6e-8  # 2**-24
EPOCHS = 2  # the second of which has fixed statistics, where the preset has
Ways = dict[str, tuple[Execution, Team]]  # by name: how each computes, and where
TOLERANCE = 2  # times the effect of one disturbance, which is a single draw of what rounding can do


def equivalence(archive: Archive, results: Path, recipe: str, preset: str, expressions: int) -> list[dict[str, Any]]:
    """Train all ways on this machine; print the rows and write them, keeping those of other hardware and trainings.

    Raises UserError, after that, for ways that compute another training.
    """
    team = Team.gather()
    make_deterministic()
    config = resolve(recipe, preset, 7, archive).changed(
        {"data.limit": expressions, "training.epochs": EPOCHS, "training.recalibrate": 20}
    )
    what, rows, others = f"{recipe}, {preset}, {expressions:,} expressions", list[Row](), list[str]()
    for name, settings, ways in trainings(config, team):
        compared = compare_ways(what + name, settings, archive, ways)
        update_table(results / "speed/equivalence.csv", compared, ["training", "hardware", "way"])
        *_, disturbed = (row["weights_difference"] for row in compared)
        others += [
            f"{row['way']} ({row['weights_difference']:.3g} of the weights, by rounding {disturbed:.3g})"
            for row in compared
            if row["weights_difference"] > TOLERANCE * disturbed
        ]
        rows += compared
    if others:
        raise UserError(f"{what}: not the training that plain computes: {', '.join(others)}; please report it")
    return rows


def trainings(config: Config, team: Team) -> list[tuple[str, Config, Ways]]:
    """What is compared on this machine: a name, the settings, and the ways.

    A processor is compared with a GPU in float32, as each rounds to bf16 where the other does not, and without dropout,
    as each draws masks of its own.
    """
    plain = (Execution(workers=0, graphs=False), team)
    ways: Ways = {"plain": plain, "workers": (Execution(workers=2, graphs=False), team)}
    if team.device.type != "cuda":
        return [("", config, ways | {"disturbed": plain})]
    ways |= {"recorded": (Execution(workers=2, graphs=True), team), "disturbed": plain}
    cpu = (plain[0], replace(team, device=torch.device("cpu")))
    dropout = [name for name in vars(config.model) if name.endswith("dropout")]
    alike = config.changed({"training.bf16": False} | {f"model.{name}": 0.0 for name in dropout})
    devices: Ways = {"plain": plain, "cpu": cpu, "disturbed": plain}
    return [("", config, ways), (", float32, no dropout", alike, devices)]


def compare_ways(what: str, config: Config, archive: Archive, ways: Ways) -> list[Row]:
    """Train in these ways, from plain to disturbed, and show a row of each."""
    rows, plain = list[Row](), None
    for way, (execution, team) in ways.items():
        began = time.perf_counter()
        losses, weights, steps = trained(config, archive, team, execution, disturb=way == "disturbed")
        first, plain_weights = plain = plain or (losses, weights)
        differences = {
            "loss_difference": max(abs(ours - theirs) / theirs for ours, theirs in zip(losses, first, strict=True)),
            "weights_difference": float((weights - plain_weights).norm() / plain_weights.norm()),
        }
        row: Row = {"training": what, "way": way, "steps": steps, "loss": losses[-1]}
        row |= {name: float(f"{difference:.3g}") for name, difference in differences.items()}
        row |= {"seconds": round(time.perf_counter() - began, 1)}
        row |= {"hardware": environment(team.device)["device"], "versions": versions()}
        rows.append(row)
        show(f"equivalence: {what}", [row])
    return rows


def trained(
    config: Config, archive: Archive, team: Team, execution: Execution, disturb: bool
) -> tuple[list[float], Tensor, int]:
    """Losses of the epochs, the weights to recognize with in one vector (float64, on the CPU), and steps taken."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder), config)
        trainer = Trainer(run, archive, team, execution=execution)
        if disturb:
            generator = torch.Generator().manual_seed(7)
            for parameter in trainer.learner.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter.device)
                parameter.data.mul_(1 + ROUNDING * noise)
        trainer.run()
        state = trainer.learner.inference_model(None).state_dict()
        weights = torch.cat(
            [tensor.double().flatten().cpu() for tensor in state.values() if tensor.is_floating_point()]
        )
        history = RunFolder(Path(folder)).history
    return [line["loss"] for line in history], weights, history[-1]["step"]
