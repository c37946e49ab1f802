"""`make cost`: what a training costs and what bounds it, predicted from counts; nothing is timed but by `--measure`.

The real batches of an epoch (epochs.py) times what each part does with a batch (operators.py), set against what a
machine can do at best (hardware.py). A part takes as long as the slowest of arithmetic, memory and launches. Not in it:
the augmentation on the host, which goes on beside the training, and what several devices tell each other.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.checkpoint import write_atomically
from benchmarks.config import Config, resolve
from benchmarks.cost import epochs
from benchmarks.cost.epochs import Epoch, Polynomial, Shape
from benchmarks.cost.hardware import HARDWARE, Bound, Hardware, bound
from benchmarks.cost.operators import KINDS, STEP, Costs, SearchCounter, StepCounter, optimizer_cost
from benchmarks.data.archive import Archive
from benchmarks.data.batching import TrainingSet
from benchmarks.data.samples import Sample, evenly
from benchmarks.errors import UserError
from benchmarks.train import split_heldout

TOLERANCE = 0.01  # of a polynomial on real shapes; beyond it there is a term that it does not know
ORDER = (*STEP, "optimizer", "epoch", "validation", "training")
SECONDS = ("compute", "memory", "launch", "predicted", "least")
Line = dict[str, object]
Piece = tuple[int, np.ndarray, Bound]  # how often, cost, bound
KEYS = ["recipe", "preset", "precision", "hardware", "mode", "part"]
console = Console(stderr=True)


@dataclass(frozen=True)
class Plan:
    """All batches of a training."""

    config: Config
    epochs: list[tuple[int, Epoch]]  # (how often, which); the last is a full one
    searches: list[Shape]  # of a validation
    validations: int  # and re-measurements of batch-norm statistics

    @property
    def full(self) -> Epoch:
        return self.epochs[-1][1]


@dataclass(frozen=True)
class Counts:
    """What the parts of a training cost [launches, flop, byte, least], in one precision."""

    bf16: bool
    epochs: list[tuple[int, Costs]]
    validation: np.ndarray
    error: float  # of the polynomials, on real batches


def planned(config: Config, archive: Archive) -> tuple[Plan, TrainingSet]:
    samples = evenly(archive.samples("train"), config.data.limit)
    validation: list[Sample] = []
    if config.select == "heldout":
        samples, validation = split_heldout(samples, config.heldout, config.seed)
    elif config.select != "last":
        validation = archive.samples(config.select)
    training, t = TrainingSet(samples, config), config.training
    often = 1 if config.select == "last" else -(-t.epochs // t.validate_every)
    searches = epochs.searches_of(config, validation) if validation else []
    return Plan(config, epochs.epochs_of(config, training), searches, often), training


def counted(plan: Plan, bf16: bool, progress: Progress) -> Counts:
    """Counts a dozen shapes, and from them everything."""
    config, stride = plan.config, plan.config.model.stride
    training = config.training.model_copy(update={"bf16": bf16})
    config = config.model_copy(update={"training": training})
    words = f"{config.recipe} {config.preset}, {'bf16' if bf16 else 'fp32'}: counting"
    shapes = epochs.probes(10, sides=(17, 400), steps=(3, 60), images=(2, 9))
    real = epochs.spread(plan.full.shapes, 2)
    count = StepCounter(config)
    known = {shape: count(*shape) for shape in progress.track([*shapes, *real], description=words)}
    polynomials, error = {}, 0.0
    for part in STEP:
        basis = partial(epochs.decoder_basis, stride=stride) if part.startswith("decoder") else epochs.encoder_basis
        polynomials[part] = Polynomial(basis, {shape: known[shape][part] for shape in shapes})
        error = max(error, polynomials[part].error({shape: known[shape][part] for shape in real}))
    if error > TOLERANCE:
        raise UserError(f"{words}: costs of real batches differ by {error:.1%} from the polynomial; it lacks a term")
    update, often = optimizer_cost(config), []
    for times, epoch in plan.epochs:
        costs = {part: polynomials[part](epoch.shapes) for part in STEP}
        often.append((times, costs | {"optimizer": update * steps(plan, epoch)}))
    full = often[-1][1]
    forward = full["encoder forward"] + full["decoder forward"]
    validation = forward * training.recalibrate / len(plan.full.shapes)
    if plan.searches:
        validation = validation + searched(plan, progress)
    return Counts(bf16, often, validation, error)


def steps(plan: Plan, epoch: Epoch) -> int:
    return len(epoch.shapes) // plan.config.training.batching.micro_batches


def searched(plan: Plan, progress: Progress) -> np.ndarray:
    """The cost of all searches of a validation. How often groups are tidied and rated depends on the hypotheses:
    launches are right within a tenth, the rest within a third."""
    basis = partial(epochs.search_basis, stride=plan.config.model.stride)
    shapes = epochs.probes(12, sides=(32, 129), steps=(4, 33), images=(1, 5))
    count, words = SearchCounter(plan.config), f"{plan.config.recipe} {plan.config.preset}: counting the search"
    known = {shape: count(*shape) for shape in progress.track(shapes, description=words)}
    return Polynomial(basis, known, growing=True)(plan.searches)


# ----------------------------------------------------------------------------------------------------- bounds


def rows(plan: Plan, counts: Counts, machine: Hardware, mode: str) -> list[Line]:
    """Every part in a full epoch, the epoch, one validation and the whole training, on one machine."""
    config, whole = plan.config, []
    precision = "bf16" if counts.bf16 else "fp32"
    keys = dict(zip(KEYS, (config.recipe, config.preset, precision, machine.name, mode), strict=False))

    def line(part: str, times: int, pieces: list[Piece]) -> Line:
        return keys | {"part": part, "config": same(config), "times": times} | summed(pieces)

    def piece(times: int, part: str, cost: np.ndarray) -> Piece:
        bf16 = config.search.bf16 if part == "validation" else counts.bf16
        return times, cost, bound(cost, machine, mode, bf16, shared=part in STEP)

    for times, costs in counts.epochs:
        whole += [piece(times, part, cost) for part, cost in costs.items()]
    full, often = counts.epochs[-1][1], config.training.epochs
    found = [line(part, often, [piece(1, part, cost)]) for part, cost in full.items()]
    found.append(line("epoch", often, [piece(1, part, cost) for part, cost in full.items()]))
    if counts.validation.any():
        found.append(line("validation", plan.validations, [piece(1, "validation", counts.validation)]))
        whole.append(piece(plan.validations, "validation", counts.validation))
    return [*found, line("training", 1, whole)]


def summed(pieces: list[Piece]) -> Line:
    """The sums over pieces, and what limits most of the time."""
    cost = sum((times * cost for times, cost, _ in pieces), np.zeros(len(KINDS)))
    launches, flop, byte, least = map(float, cost)
    seconds = {name: sum(times * getattr(b, name) for times, _, b in pieces) for name in SECONDS}
    shares: dict[str, float] = {}
    for times, _, b in pieces:
        shares[b.limited_by] = shares.get(b.limited_by, 0.0) + times * b.predicted
    return {
        "launches": round(launches), "gflop": flop / 1e9, "gbyte": byte / 1e9, "gbyte_least": least / 1e9,
        **{f"{name}_s": value for name, value in seconds.items()},
        "limited_by": max(shares, key=lambda name: shares[name]),
    }  # fmt: skip


def same(config: Config) -> str:
    """The digest that all seeds share, as a run folder's `recipe_hash`."""
    return config.model_copy(update={"seed": 0}).digest


def shape_row(plan: Plan, counts: Counts) -> Line:
    """What a full epoch is made of."""
    epoch, config = plan.full, plan.config
    launches = sum(cost[0] for cost in counts.epochs[-1][1].values())
    return {
        "recipe": config.recipe, "preset": config.preset, "precision": "bf16" if counts.bf16 else "fp32",
        "config": same(config), "epochs": config.training.epochs,
        "images": epoch.images, "steps": steps(plan, epoch), "micro_batches": len(epoch.shapes),
        "shapes": len(set(epoch.shapes)), "megapixels": epoch.pixels / 1e6,
        "padded_megapixels": epoch.padded_pixels / 1e6, "pixel_ratio": epoch.padded_pixels / epoch.pixels,
        "tokens": epoch.tokens, "padded_tokens": epoch.padded_tokens, "token_ratio": epoch.padded_tokens / epoch.tokens,
        "launches_a_step": round(launches / steps(plan, epoch)), "polynomial_error": round(counts.error, 4),
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------- the verb


def cost(archive: Archive, results: Path, recipe: str, presets: list[str], hardware: list[str]) -> None:
    """Prints the predictions and puts them into results/speed/cost.csv and epoch.csv (of CROHME alone)."""
    for name in hardware:
        if name not in HARDWARE:
            raise UserError(f"--hardware {name}: not known; choose from {', '.join(HARDWARE)}")
    lines: list[Line] = []
    shapes: list[Line] = []
    with Progress(console=console, transient=True) as progress:
        for preset in presets:
            plan, _ = planned(resolve(recipe, preset, 7, archive), archive)
            for bf16 in (False, True):
                counts = counted(plan, bf16, progress)
                shapes.append(shape_row(plan, counts))
                for machine in map(HARDWARE.__getitem__, hardware or HARDWARE):
                    if able(machine, plan.config, bf16):
                        lines += [row for mode in machine.launch for row in rows(plan, counts, machine, mode)]
            own = "bf16" if plan.config.training.bf16 else "fp32"
            made = [row for row in lines if (row["preset"], row["precision"]) == (plan.config.preset, own)]
            show_parts(made, (hardware or ["h200"])[0])
    if not lines:
        raise UserError(
            f"--hardware {' '.join(hardware)}: has no bf16, or more devices than micro-batches: choose another"
        )
    show("a full epoch: its batches (counted)", across([without(row, "config", "recipe") for row in shapes]))
    names = ("config", "times", "recipe", "launches", "gflop", "gbyte", "gbyte_least")
    totals = [without(row, *names) for row in lines if row["part"] in ("epoch", "training")]
    show("PREDICTED from counts and the vendors' peak numbers, not measured", totals)
    if archive.name != "crohme":
        console.print(f"{archive.path} is not CROHME: nothing was written", style="yellow", soft_wrap=True)
        return
    for name, made, keys in (("cost.csv", lines, KEYS), ("epoch.csv", shapes, KEYS[:3])):
        save(results / "speed" / name, pd.DataFrame(made), keys)
        print(results / "speed" / name)


def able(machine: Hardware, config: Config, bf16: bool) -> bool:
    """Whether it has the precision, and work for all its devices."""
    precise = machine.bf16 is not None or not (bf16 or config.search.bf16)
    return precise and config.training.batching.micro_batches % machine.devices == 0


def save(path: Path, made: pd.DataFrame, keys: list[str]) -> None:
    """Puts rows into the table, in the place of all older ones of their recipes and presets; sorted."""
    whole, own = made, ["recipe", "preset"]
    if path.exists():
        old = pd.read_csv(path)
        if list(old.columns) != list(made.columns):
            raise UserError(f"{path}: has other columns than {', '.join(made.columns)}; delete it and count again")
        now = set(made[own].itertuples(index=False, name=None))
        kept = old[[pair not in now for pair in old[own].itertuples(index=False, name=None)]]
        whole = pd.concat([kept, made]) if len(kept) else made
    if "part" in keys:
        whole = whole.assign(part=pd.Categorical(whole["part"], ORDER))
    whole = pd.DataFrame(whole).sort_values(keys)
    write_atomically(path, whole.to_csv(index=False, float_format="%.5g", lineterminator="\n"))


def show_parts(lines: list[Line], machine: str) -> None:
    """Where the seconds go, in both ways to launch."""
    for mode in dict.fromkeys(row["mode"] for row in lines if row["hardware"] == machine):
        some = [row for row in lines if (row["hardware"], row["mode"]) == (machine, mode)]
        title = " ".join(str(some[0][key]) for key in KEYS[:-1])
        show(f"PREDICTED, not measured: {title}", [without(row, *KEYS[:-1], "config") for row in some])


def without(line: Line, *names: str) -> Line:
    return {name: value for name, value in line.items() if name not in names}


def across(lines: list[Line]) -> list[Line]:
    """A column a line, for lines of many fields."""
    return [{"": name.replace("_", " ")} | {f"{n}": line[name] for n, line in enumerate(lines, 1)} for name in lines[0]]


def show(title: str, lines: list[Line]) -> None:
    table = Table(title=title, title_justify="left")
    for name, value in lines[0].items() if lines else ():
        side = "left" if isinstance(value, str) and not name.isdigit() else "right"
        table.add_column(name.replace("_", " "), justify=side, overflow="fold")
    for line in lines:
        table.add_row(*map(_text, line.values()))
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
