"""The presets of runs: which may be pooled under one name, and how one differs from the authors' training."""

import hashlib
import json
from collections.abc import Iterable

from benchmarks.config import AUTHORS_MAX_TOKENS, Config
from benchmarks.report.paper import reference
from benchmarks.runs.contents import Data
from benchmarks.runs.folder import RunFolder
from models.config import CoMERConfig


def settings(run: RunFolder) -> str:
    """Digest of all settings but those that make a row of the paper's table, and the seed."""
    config = run.config
    model = {key: value for key, value in config.get("model", {}).items() if not key.endswith("_coverage")}
    rest = {key: config[key] for key in config if key not in ("schema_version", "recipe", "seed", "augmentation")}
    text = json.dumps(rest | {"model": model}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def names(runs: Iterable[RunFolder]) -> dict[RunFolder, str]:
    """Each run's preset; with the digest of its settings where runs of one preset differ in them, so that nobody takes
    them for seeds of a row or for rows of a table."""
    kinds: dict[tuple[str, object], set[str]] = {}
    of = {run: (run.preset, run.recipe in reference()["recipes"] or run.recipe) for run in runs}
    for run, kind in of.items():
        kinds.setdefault(kind, set()).add(settings(run))
    return {run: run.preset if len(kinds[kind]) == 1 else f"{run.preset} {settings(run)}" for run, kind in of.items()}


def added(data: Data) -> str:
    """What a run trains on in addition to the archive's expressions, in short; `data` as in its config.yaml."""
    parts, share = data.get("sub_expressions", 0), data.get("substitution", 0.0)
    words = [f"{parts} part{'s' * (parts > 1)}"] if parts else []
    return ", ".join([*words, f"{share:.0%} substituted"] if share else words) or "nothing"


def departures(name: str, config: Config) -> str:
    """In words: how the network, the images, the data and the reading of a preset differ from the authors'."""
    data, blocks = config.data, (config.model.num_layers, CoMERConfig().num_layers)
    layers, theirs = (3 * each if isinstance(each, int) else sum(each) for each in blocks)
    small = [f"{layers} of the authors' {theirs} dense layers"] if layers < theirs else []
    small += [f"images at {data.scale:g} of their width and height"] if data.scale < 1 else []
    network = f"a small network ({', '.join(small)}); its levels are not the paper's" if small else "full size"
    trained = f"Trained on {f'{data.limit:,} of ' if data.limit else ''}the paper's 8,834 expressions"
    trained += f" of at most {data.max_tokens} tokens" if data.max_tokens < AUTHORS_MAX_TOKENS else ""
    parts, share = data.sub_expressions, data.substitution
    trained += (
        f" and {'one sub-expression' if parts == 1 else f'up to {parts} sub-expressions'} of each" if parts else ""
    )
    trained += f", {share:.0%} of their symbols substituted" if share else ""
    trained += "" if parts or share else " alone"
    trained += f", for {config.training.epochs} epochs."
    scales = [f"{scale:g}" for scale in config.search.scales]
    read = f" Images are read at {', '.join(scales)} times their size in training{', all at once' * (len(scales) > 1)}."
    read = "" if scales == ["1"] else read
    return f"`{name}`: {network}. {trained}{read}"
