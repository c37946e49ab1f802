"""`benchmarks precision`: does bf16 harm training? Pairs of short training runs, float32 and bf16, from equal seeds.

The runs of a pair see the same batches and draw the same dropout. Both are then evaluated in float32 with teacher
forcing on the same held-out expressions. bf16 counts as harmless if, for held-out loss and token accuracy alike,
Student's 95 % interval of the mean paired difference lies within one standard deviation of the float32 seeds. A wider
interval means "not shown", not "harmful".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from hmerbench.benchmarks.config import resolve
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.batching import evaluation_batches
from hmerbench.benchmarks.data.samples import evenly, split_heldout
from hmerbench.benchmarks.environment import best_device, bf16_unit
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.printing import counted, err_console, show
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training.teacher_forcing import teacher_forced
from hmerbench.benchmarks.training.trainer import train
from hmerbench.evaluation.scoring.stats import mean_interval
from hmerbench.models.weights import load_weights

METRICS = ("loss", "heldout_loss", "heldout_token_accuracy")  # of the last epoch; the verdict uses those held out


@dataclass(frozen=True)
class Sizes:
    """Sizes of the training runs and of the held-out set."""

    limit: int  # training expressions, evenly spaced
    epochs: int
    heldout: int = 300
    max_tokens: int = 200  # longer labels are skipped


def precision(
    archive: Archive, results: Path, recipe: str, preset: str, seeds: Sequence[int], sizes: Sizes
) -> list[dict[str, object]]:
    """Train the missing runs, compare, and on CROHME write results/speed/precision*.csv. Returns the rows of the
    verdict. Raises UserError for fewer than two seeds, too little data or a device without a unit for bf16."""
    if len(set(seeds)) < 2:
        raise UserError("--seeds: the spread between seeds needs at least two, a conclusion five or more")
    if bf16_unit(best_device().type) is None:
        raise UserError("this device has no unit for bf16 products, so both sides would be float32: use one that has")
    samples = [sample for sample in archive.samples("train") if len(sample.tokens) <= sizes.max_tokens]
    chosen = evenly(samples, sizes.limit + sizes.heldout)
    if len(chosen) < sizes.limit + sizes.heldout:
        wanted = f"{sizes.limit} to train on and {sizes.heldout} to hold out"
        raise UserError(
            f"{archive.path}: {len(chosen)} expressions are too few for {wanted}; lower --limit or --heldout"
        )
    kept, heldout = split_heldout(chosen, sizes.heldout / len(chosen), 0)  # the same for all seeds
    lines: list[dict[str, object]] = []
    for number, (seed, bf16) in enumerate(product(dict.fromkeys(seeds), (False, True)), 1):
        values = {"training.epochs": sizes.epochs, "training.bf16": bf16, "data.max_tokens": sizes.max_tokens}
        short = resolve(recipe, preset, seed, archive).changed(values | {"data.limit": len(chosen)})
        config = short.model_copy(update={"select": "last"})  # also for `plateau`, whose rate then stays constant
        folder = results / f"local/precision/{sizes.limit}-{sizes.heldout}" / config.run_name
        err_console.print(f"training {number} of {2 * len(set(seeds))}: seed {seed}, bf16: {bf16}")
        train(RunFolder(folder, config), archive, samples=kept)
        run = RunFolder(folder)
        row: dict[str, object] = {"recipe": config.recipe, "preset": config.preset}
        row |= {"images": len(kept), "heldout": len(heldout)}
        row |= {"max_tokens": sizes.max_tokens, "precision": "bf16" if bf16 else "fp32", "seed": seed}
        lines += [row | {key: epoch[key] for key in ("epoch", "loss", "seconds")} for epoch in run.history]
        model = load_weights(run.weights, config.model)
        learnable = [sample for sample in heldout if model.unfit(sample.tokens) is None]
        batches = evaluation_batches(learnable, config, config.training.batching.size)
        loss, accuracy = teacher_forced(model, batches)
        hardware = f"{run.environment.get('device')}, {counted(run.environment.get('threads', 0), 'thread')}"
        lines[-1] |= {"heldout_loss": loss, "heldout_token_accuracy": accuracy, "hardware": hardware}
    table = pd.DataFrame(lines)
    verdicts = judge(table)
    harmless = all(row["verdict"] == "harmless" for row in verdicts if str(row["metric"]).startswith("heldout"))
    conclusion = f"bf16 is {'' if harmless else 'not shown to be '}harmless here"
    show("bf16 - fp32, pairs of equal seeds, 95 % interval", verdicts, conclusion)
    if archive.name == "crohme":
        for name, frame in (("precision.csv", table), ("precision_verdict.csv", pd.DataFrame(verdicts))):
            write_atomically(results / "speed" / name, frame.to_csv(index=False, float_format="%.6g"))
            print(results / "speed" / name)
    return verdicts


def judge(table: pd.DataFrame) -> list[dict[str, object]]:
    """One row per metric: both means, the spread over seeds, the paired difference with its interval, and a verdict."""
    last = table[table["epoch"] == table["epoch"].max()]
    rows: list[dict[str, object]] = []
    for metric in METRICS:
        sides = last.pivot(index="seed", columns="precision", values=metric)
        fp32, bf16 = sides["fp32"].to_numpy(), sides["bf16"].to_numpy()
        (low, high), spread = mean_interval((bf16 - fp32).tolist()), float(fp32.std(ddof=1))
        verdict = "different" if low > spread or high < -spread else "not shown"
        if -spread <= low and high <= spread:
            verdict = "harmless"
        row: dict[str, object] = {"metric": metric, "n": len(fp32), "fp32": float(fp32.mean())}
        row |= {"bf16": float(bf16.mean()), "seed_sd": spread, "difference": float((bf16 - fp32).mean())}
        row |= {"low": low, "high": high, "verdict": verdict}
        rows.append(row | {"seeds_needed": seeds_needed(bf16 - fp32, spread)})
    return rows


def seeds_needed(differences: np.ndarray, spread: float) -> int | None:
    """Number of seeds that would bring the interval within `spread` at the same mean and standard deviation of the
    paired differences; None if more than 100."""
    seeds = np.arange(2, 101)
    widths = stats.t.ppf(0.975, seeds - 1) * differences.std(ddof=1) / np.sqrt(seeds)
    enough = seeds[abs(differences.mean()) + widths <= spread]
    return int(enough[0]) if len(enough) else None
