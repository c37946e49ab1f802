"""Presets: when runs may share one's label, how it differs from the authors' training, what it costs and reads, as
measured by the committed runs; and the plan of a job."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from statistics import mean, median

from hmerbench.benchmarks.config import AUTHORS_MAX_TOKENS, SCALE, Config, Data, digest_of_keys
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.paths import COMMITTED
from hmerbench.benchmarks.printing import counted, show
from hmerbench.benchmarks.report.paper import ORDER, REPORTED, YEAR, model_name, reference
from hmerbench.benchmarks.resolve import PRESETS, resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import AnyRun, shipped
from hmerbench.evaluation.datasets import TRAIN, crohme


def rung(preset: str) -> tuple[int, str]:
    """Sort key: the order of the ladder, then other presets by name."""
    return PRESETS.index(preset) if preset in PRESETS else len(PRESETS), preset


def settings_digest(run: RunFolder, switches: bool = False) -> str:
    """Digest of all settings but the seed and, unless asked for, the `switches` by which the rows of the paper's tables
    differ: coverage, BTTR's directions if all are read, scale augmentation."""
    keys = run.settings.model_dump(mode="json", exclude={"schema_version", "recipe", "seed"})
    if switches:
        return digest_of_keys(keys)
    told_apart = {"network", "self_coverage", "cross_coverage", "bidirectional"}
    model = {key: value for key, value in keys["model"].items() if key not in told_apart}
    whole = "both" if "both" in (learned := run.settings.model.directions) else learned[0]
    search = {key: value for key, value in keys["search"].items() if (key, value) != ("direction", whole)}
    sizes = keys["augmentation"] or {}
    augmentation = {name: size for name, size in sizes.items() if size and not name.startswith("scale")}
    scale = sizes.get("scale") or sizes.get("scale_of_others")  # the preset's; none is the authors'
    augmentation |= {"scale": scale} if scale and scale != [*SCALE] else {}
    return digest_of_keys(keys | {"model": model, "search": search, "augmentation": augmentation})


def preset_labels(runs: Iterable[RunFolder]) -> dict[RunFolder, str]:
    """Label each run with its preset.

    If runs of the same preset differ in their settings, each label includes the digest of the settings, so that these
    runs are never pooled as seeds of a row nor compared as rows of a table. Custom recipes are checked one by one, and
    so are the networks, whose settings differ anyway. Where a custom recipe was changed in a switch, there is one more.
    """
    ours = reference()["recipes"]
    groups = {run: (run.preset, run.settings.model.network, run.recipe in ours or run.recipe) for run in runs}
    digests = {run: settings_digest(run) for run in groups}
    kinds = Counter(group for group, _ in {(group, digests[run]) for run, group in groups.items()})
    labels = {run: f"{run.preset} {digests[run]}" if kinds[group] > 1 else run.preset for run, group in groups.items()}
    custom = [run for run in labels if run.recipe not in ours]
    told = {run: (run.recipe, labels[run], settings_digest(run, switches=True)) for run in custom}
    variants = Counter((recipe, label) for recipe, label, _ in {*told.values()})
    return labels | {run: f"{of[1]} {of[2]}" for run, of in told.items() if variants[of[:2]] > 1}


def added_data(data: Data) -> str:
    """Summarize what a run trains on beyond the archive's expressions."""
    parts, share = data.sub_expressions, data.substitution
    words = [counted(parts, "part")] if parts else []
    words += [f"{count} exchanged"] if (count := data.exchanged) else []
    return ", ".join([*words, f"{share:.0%} substituted"] if share else words) or "nothing"


def describe_preset(config: Config, runs: Iterable[RunFolder] = ()) -> dict[str, str]:
    """A row of the table of presets: network, images, training data and reading scales, and the cost and number of
    seeds per row of `runs`."""
    data, runs = config.data, list(runs)
    expressions = f"{data.limit or crohme().n(TRAIN):,}"
    if data.max_tokens < AUTHORS_MAX_TOKENS:
        expressions += f" of at most {data.max_tokens} tokens"
    read_at, others = ", ".join(f"{scale:g}" for scale in config.search.scales), len(config.search.together.runs)
    return {
        "dense layers": str(config.model.dense_layers),
        "image scale": f"{data.scale:g}",
        "expressions": expressions,
        "added": added_data(data),
        "epochs": str(config.training.epochs),
        "read at": f"{read_at} by {1 + others} networks" if others else read_at,
        "core-minutes": number_range([minutes for run in runs if (minutes := run.core_minutes)]),
        "seeds": number_range(Counter(recipe for recipe, _ in {(run.recipe, run.seed) for run in runs}).values()),
    }


CHANGED = {  # what a preset may change besides data and size -> how a configuration has it
    "network": lambda c: f"{c.model.dense_layers} dense layers, decoder {c.model.d_model} wide",
    "images": lambda c: f"scale {c.data.scale:g}",
    "training data": lambda c: f"the archive's; added: {added_data(c.data)}",
    "distortions": lambda c: ", ".join(n for n, size in c.augmentation.model_dump().items() if size) or "none",
    "batches": lambda c: f"by {c.training.batching.order}, up to {c.training.batching.size}",
    "optimizer": lambda c: f"{c.training.optimizer.name}, {c.training.schedule.name}",
    "epochs": lambda c: f"{c.training.epochs}",
    "labels": lambda c: f"smoothed by {share:g}" if (share := c.training.label_smoothing) else "as they are",
    "weights": lambda c: f"averaged ({share:g})" if (share := c.training.average) else "as trained",
    "statistics": lambda c: f"fixed in the last {end:.0%}" if (end := c.training.fixed_statistics) else "of batches",
    "epoch": lambda c: "the last" if c.select == "last" else f"by ExpRate of {c.select}",
    "read at": lambda c: ", ".join(f"{scale:g}" for scale in c.search.scales),
    "predictions": lambda c: f"{'convertible' if c.search.convertible else 'best'}, exponent {c.search.alpha:g}",
}  # fmt: skip


def recipes(presets: Iterable[str]) -> list[dict[str, str]]:
    """The settings of CoMER (Fusion) at each preset, those of the paper first."""
    configs = {preset: resolve("comer-fusion", preset, 7) for preset in ("paper", *presets)}
    return [
        {"": what} | {f"`{preset}`": words(config) for preset, config in configs.items()}
        for what, words in CHANGED.items()
    ]


def number_range(values: Collection[float]) -> str:
    """Minimum and maximum, or one number if they are equal."""
    return "–".join(dict.fromkeys(f"{end:.0f}" for end in (min(values), max(values)))) if values else ""


COST, READS = "training a row of Table 1", f"Fusion's ExpRate on CROHME {YEAR}"  # headings
FORMER = " (an earlier form)"  # of the preset


def ladder(root: Path = COMMITTED) -> list[dict[str, str]]:
    """The rows of the table that `ls` prints and README shows: what a preset costs and reads, on what it runs, what it
    is for. The paper's own is as reported, as nobody has run it here."""
    rungs, runs_on, purposes = [], shipped("presets", "runs_on"), shipped("presets")
    unknown = "not yet run" if root.exists() else "–"  # an installation has no committed runs
    for preset in PRESETS:
        rows = {recipe: _runs(preset, recipe, root) for recipe in ORDER}
        fusion = rows["comer-fusion"]
        known = [model_name(recipe) for recipe, runs in rows.items() if _minutes(runs)]
        cost = _minutes(chain.from_iterable(rows.values()))
        cost += f", {', '.join(known)}" if 0 < len(known) < len(ORDER) else ""
        rates = [run.scores[YEAR].exprate for run in fusion if YEAR in run.scores]
        reads = f"{mean(rates):.1f} %{FORMER * any(map(_changed_since, fusion))}" if rates else ""
        if preset == "paper":
            cost = cost or f"{reference()['training']} (reported)"
            reads = reads or f"{REPORTED['comer-fusion']:.1f} % (reported)"
        cost = cost or ("minutes" if preset == PRESETS[0] else "not measured" if reads else unknown)
        rung = {"preset": preset, COST: cost, READS: reads or "–"}
        rungs.append(rung | {"runs on": runs_on[preset], "what for": purposes[preset]})
    return rungs


def _runs(preset: str, recipe: str, root: Path = COMMITTED) -> list[RunFolder]:
    return [RunFolder(path) for path in root.glob(f"{recipe}/{preset}-seed*")]


def _minutes(runs: Iterable[RunFolder]) -> str:
    """Core-minutes of training; empty where none are known."""
    timed = [run for run in runs if run.core_minutes]
    minutes = number_range([run.core_minutes for run in timed])
    return f"{minutes} core-minutes{FORMER * any(map(_changed_since, timed))}" if minutes else ""


def _changed_since(run: RunFolder) -> bool:
    """Whether it was trained otherwise than its preset says today."""
    today = resolve(run.recipe, run.preset, run.seed)
    return any(getattr(run.settings, part) != getattr(today, part) for part in ("model", "augmentation", "training"))


def advice(preset: str, data: str = "crohme") -> str:
    """What to know before and after a job on CROHME at the rung that reads next to nothing: the next one; else ""."""
    if data != "crohme" or preset != PRESETS[0] or (above := ladder()[1])[READS] == "–":
        return ""
    return (
        f"{preset} is a smoke test of every stage, with accuracy near zero on CROHME; "
        f"PRESET={above['preset']} reads {above[READS]} of {YEAR} after {above[COST]} a row"
    )


def show_plan(runs: Sequence[AnyRun], splits: Sequence[str]) -> None:
    """Print, before a job begins, what is done of each run, and how long its training will take."""
    rows = []
    for run in runs:
        done = ["trained", *(split for split in splits if run.scored(split))] if run.trained_here else []
        row = {"row": run.recipe, "seed": run.seed, "already done": ", ".join(done) or "-"}
        rows.append(row | {"training time": "-" if run.trained_here else expected_time(run)})
    of = f"preset {runs[0].preset}" if runs[0].preset else f"language models on {runs[0].data}"
    show(f"plan: {of}, test sets {', '.join(splits)}", rows)


def expected_time(run: AnyRun) -> str:
    """How long a training will take, by those finished here, or else by the committed ones."""
    if (seconds := expected_seconds(run)) is not None:
        return f"~{seconds:.0f} s" if seconds < 120 else f"~{seconds / 60:.0f} min"
    return (run.data == "crohme" and _minutes(_runs(run.preset, run.recipe))) or "unknown"


def expected_seconds(run: AnyRun) -> float | None:
    """Median duration of the finished trainings in the same workspace that are alike: at a recognizer's preset, or of a
    language model's recipe; None if there are none."""
    alike = f"*/{run.preset}-seed*" if run.preset else f"{run.path.parent.name}/*"
    durations = list[float]()
    for other in map(type(run), run.path.parents[1].glob(alike)):
        with suppress(UserError):  # a damaged file there is no fault of this run
            durations += other.seconds[-1:] if other.trained_here else []
    return median(durations) if durations else None
