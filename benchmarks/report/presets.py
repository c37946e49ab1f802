"""Presets of runs: when runs may share a preset's label, and how a preset differs from the authors' training."""

import hashlib
import json
from collections.abc import Iterable

from benchmarks.config import AUTHORS_MAX_TOKENS, Config
from benchmarks.report.paper import reference
from benchmarks.runs.contents import Data
from benchmarks.runs.folder import RunFolder
from models.config import CoMERConfig


def settings_digest(run: RunFolder) -> str:
    """Digest of all settings except the seed and those that distinguish the rows of the paper's Table 1."""
    config = run.config
    model = {key: value for key, value in config.get("model", {}).items() if not key.endswith("_coverage")}
    rest = {key: config[key] for key in config if key not in ("schema_version", "recipe", "seed", "augmentation")}
    text = json.dumps(rest | {"model": model}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def preset_labels(runs: Iterable[RunFolder]) -> dict[RunFolder, str]:
    """Label each run with its preset.

    If runs of the same preset differ in their settings, each label includes the digest of the settings, so that these
    runs are never pooled as seeds of a row nor compared as rows of a table. Custom recipes are checked one by one.
    """
    digests: dict[tuple[str, object], set[str]] = {}
    groups = {run: (run.preset, run.recipe in reference()["recipes"] or run.recipe) for run in runs}
    for run, group in groups.items():
        digests.setdefault(group, set()).add(settings_digest(run))
    return {
        run: run.preset if len(digests[group]) == 1 else f"{run.preset} {settings_digest(run)}"
        for run, group in groups.items()
    }


def added_data(data: Data) -> str:
    """Summarize what a run trains on beyond the archive's expressions; `data` as in its config.yaml."""
    parts, share = data.get("sub_expressions", 0), data.get("substitution", 0.0)
    words = [f"{parts} part{'s' * (parts > 1)}"] if parts else []
    return ", ".join([*words, f"{share:.0%} substituted"] if share else words) or "nothing"


def describe_preset(name: str, config: Config) -> str:
    """Describe how a preset's network, images, training data and reading scales differ from the authors'."""
    data, parts, share = config.data, config.data.sub_expressions, config.data.substitution
    block_sizes = config.model.num_layers, CoMERConfig().num_layers
    layers, authors_layers = (3 * size if isinstance(size, int) else sum(size) for size in block_sizes)
    reduced = [f"{layers} of the authors' {authors_layers} dense layers"] if layers < authors_layers else []
    reduced += [f"images at {data.scale:g} of their width and height"] if data.scale < 1 else []
    network = f"a small network ({', '.join(reduced)}); its levels are not the paper's" if reduced else "full size"
    trained = f"Trained on {f'{data.limit:,} of ' if data.limit else ''}the paper's 8,834 expressions"
    if data.max_tokens < AUTHORS_MAX_TOKENS:
        trained += f" of at most {data.max_tokens} tokens"
    if parts:
        trained += f" and {'one sub-expression' if parts == 1 else f'up to {parts} sub-expressions'} of each"
    if share:
        trained += f", {share:.0%} of their symbols substituted"
    if not parts and not share:
        trained += " alone"
    text = f"`{name}`: {network}. {trained}, for {config.training.epochs} epochs."
    scales = [f"{scale:g}" for scale in config.search.scales]
    if scales != ["1"]:
        at_once = ", all at once" if len(scales) > 1 else ""
        text += f" Images are read at {', '.join(scales)} times their size in training{at_once}."
    return text
