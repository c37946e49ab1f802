"""`hmerbench equivalence`: the ways to compute a training, compared with what rounding alone does to it.

The ways are compared on the same short training, a preset's with fewer expressions and epochs: every loss and the final
weights with those of `plain`. A way that computes the same training differs from it no more than `disturbed` does.
- plain: batches made by the training itself, kernel by kernel
- workers: batches made by processes, bit for bit the same
- recorded (GPU): steps and updates replayed from CUDA graphs, batches made by processes
- disturbed: plain, from first weights changed by 6e-8 of their values at random, the rounding unit of float32
In results/speed/equivalence.csv, `loss` is that of the last epoch, `loss_difference` the largest of an epoch, relative;
`weights_difference` is |weights - plain| / |plain|, of all weights that are read with.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.environment import Execution, environment
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


def ways(device: torch.device) -> dict[str, Execution]:
    """How each way computes, on a device."""
    plain = Execution(workers=0, graphs=False)
    recorded = {"recorded": Execution(workers=2, graphs=True)} if device.type == "cuda" else {}
    return {"plain": plain, "workers": Execution(workers=2, graphs=False), **recorded, "disturbed": plain}


def equivalence(archive: Archive, results: Path, recipe: str, preset: str, expressions: int) -> list[dict[str, Any]]:
    """Train all ways on this machine; print the rows and write them, keeping those of other hardware and trainings."""
    team = Team.gather()
    make_deterministic()
    config = resolve(recipe, preset, 7, archive).changed(
        {"data.limit": expressions, "training.epochs": EPOCHS, "training.recalibrate": 20}
    )
    what, device = f"{recipe}, {preset}, {expressions:,} expressions", environment(team.device)["device"]
    rows, plain = list[Row](), None
    for way, execution in ways(team.device).items():
        began = time.perf_counter()
        losses, weights, steps = trained(config, archive, team, execution, disturb=way == "disturbed")
        first, plain_weights = plain = plain or (losses, weights)
        differences = {
            "loss_difference": max(abs(ours - theirs) / theirs for ours, theirs in zip(losses, first, strict=True)),
            "weights_difference": float((weights - plain_weights).norm() / plain_weights.norm()),
        }
        row: Row = {"training": what, "way": way, "steps": steps, "loss": losses[-1]}
        row |= {name: float(f"{difference:.3g}") for name, difference in differences.items()}
        row |= {"seconds": round(time.perf_counter() - began, 1), "hardware": device, "versions": versions()}
        rows.append(row)
        show(f"equivalence: {what}", [row])
    update_table(results / "speed/equivalence.csv", rows, ["training", "hardware", "way"])
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
