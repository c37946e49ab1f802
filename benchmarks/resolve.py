"""From files to settings: recipes, presets and run folders; and which keys these files may set.

`resolve` merges defaults <- preset <- recipe and refuses unknown keys.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.config import FILLED_IN, NEED_INK, SCHEMA, Config
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import digest_of
from hmerbench.benchmarks.printing import err_console
from hmerbench.benchmarks.strict_files import flat, merge, network_of, read_yaml, schema, validate
from hmerbench.evaluation.datasets import datasets
from hmerbench.models.settings import NETWORKS, UNNAMED, without_former

ABOUT = ("description", "runs_on")  # of a file: what for, and a preset's hardware; no settings
SECTIONS = {"data", "model", "augmentation", "training", "search"}
SHIPPED = Path(__file__).parent  # contains recipes/, presets/ and spaces/
# keys of `training` up to version 7: how a run was computed, which environment.json records
FORMER_TRAINING = {"threads", "workers", "resident", "graphs"}
NO_UNDISTORTED = ("undistorted", 0.0)  # of version 5: no end of the training without distortions, as in all runs now
PRESETS = ("smoke", "small", "medium", "large", "paper", "gpu")  # the ladder: from minutes to the authors' network


def names(kind: str) -> list[str]:
    """Names of the shipped recipes, presets or tuning spaces."""
    return sorted(path.stem for path in (SHIPPED / kind).glob("*.yaml"))


def resolve(recipe: str, preset: str, seed: int, archive: Any = None) -> Config:
    """Merge defaults <- preset <- recipe, tied to the archive's name and digest.

    `recipe` and `preset` are shipped names or paths of YAML files. A `model.size` stands for the keys that it means to
    the network; other keys of the model override them. `select` becomes `heldout` if it names a test split
    that the archive lacks; on the embedded set, which has no pen strokes, the settings that need them become 0.
    """
    recipe_name, recipe_keys, recipe_source = read_named("recipes", recipe)
    preset_name, preset_keys, preset_source = read_named("presets", preset)
    source = f"{recipe_source} with {preset_source}"
    keys = merge(preset_keys, recipe_keys) | {"recipe": recipe_name, "preset": preset_name, "seed": seed}
    if preset_keys.get("augmentation", {}) is None and recipe_keys.get("augmentation") == {"scale": None}:
        keys["augmentation"] = None  # as in the other rows, which do not scale either
    scale = (preset_keys.get("augmentation") or {}).get("scale")
    if scale and (augmentation := keys["augmentation"]) and augmentation["scale"] is None:
        keys["augmentation"] = augmentation | {"scale_of_others": scale}
    keys["model"] = sized(keys.get("model", {}), source)
    keys["select"] = _selection(str(keys.get("select", Config.model_fields["select"].default)), archive, source)
    if archive is not None:
        keys["data"] = _tied(keys.get("data", {}), archive)
    return _with_digests(validate(Config, keys, source), source)


def _selection(select: str, archive: Any, source: str) -> str:
    """What selects the epoch on an archive. Raises UserError for a test set that nobody knows."""
    there = archive.tests if archive else ()
    known = *there, *(split for each in datasets().values() for split in each.tests)
    if select not in ("heldout", "last", *known):
        raise UserError(f"{source}: select: must be heldout, last or a test set, not {select[:40]!r}")
    if archive is None or select in ("heldout", "last", *there):
        return select
    if archive.name != "embedded":
        _tell_heldout(archive.path, select)
    return "heldout"


def _tied(data: dict[str, Any], archive: Any) -> dict[str, Any]:
    """The keys of `data`, tied to the contents of an archive."""
    data = data | {"name": archive.name, "digest": archive.digest}
    if archive.name == "embedded":
        data |= dict.fromkeys(NEED_INK, 0)
    return data | ({"ink": archive.inkml_digest} if any(data.get(key) for key in NEED_INK) else {})


def _with_digests(config: Config, source: str) -> Config:
    """The settings, tied to the weights that the search reads with. Raises UserError if some are missing."""
    language, together = config.search.language, config.search.together
    if language.weights:
        if not language.path.is_file():
            raise UserError(f"{source}: search.language.weights: there is no {language.path}; `reproduce-lm` makes one")
        config = config.changed({"search.language.digest": digest_of(language.path)})
    for path in together.weights:
        if not path.is_file():
            raise UserError(f"{source}: search.together.runs: there is no {path}; train that run, or leave it out")
    if together.runs:
        config = config.changed({"search.together.digests": [digest_of(path) for path in together.weights]})
    return config


@cache
def _tell_heldout(archive: Path, select: str) -> None:
    """Once for all runs on an archive."""
    err_console.print(f"{archive}: no test set {select} in it, so a held-out part of train selects the weights")


def sized(model: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Keys of a model with those that its `size` stands for. Raises UserError for a size that its network lacks."""
    keys, name = dict(model), network_of(model)
    size, sizes = keys.pop("size", "published"), NETWORKS[name].sizes
    if size not in list(sizes):
        raise UserError(f"{source}: model.size: {name} has no size {size!r}; choose one of {', '.join(sizes)}")
    return merge(sizes[size], keys)


def load(path: Path) -> Config:
    """Read the `config.yaml` of a run folder. An older one keeps its schema version, so it is not trained further."""
    if not path.exists():
        raise UserError(f"{path.parent}: this is not a run folder (no config.yaml is in it); `hmerbench ls` lists runs")
    keys = {"schema_version": 1} | read_yaml(path)
    if isinstance(model := keys.get("model"), dict):
        keys["model"] = without_former(model)
    version, training = keys["schema_version"], keys.get("training")
    if isinstance(version, int) and version <= 7 and isinstance(training, dict):
        gone = FORMER_TRAINING | {key for key, value in training.items() if (key, value) == NO_UNDISTORTED}
        keys["training"] = {key: value for key, value in training.items() if key not in gone}
    if version == SCHEMA:
        return validate(Config, keys, str(path))
    try:
        return validate(Config, keys, f"{path} (version {version} of the settings, not {SCHEMA})")
    except UserError as error:
        raise UserError(f"{error}; read it with the version of the suite that made it") from None


def read_named(kind: str, name: str, *above: str) -> tuple[str, dict[str, Any], str]:
    """Name, keys and source of a shipped recipe or preset, or of a YAML file.

    A file with a key `base` overrides keys of the file that it names (one next to it, or a shipped one). `above` are
    the files based on this one, to detect cycles. Raises UserError if there is none, or if it sets what a run fills in.
    """
    if name in above:
        raise UserError(f"{kind}: {' is based on '.join((*above, name))}; remove one `base`")
    if name.endswith((".yaml", ".yml")):
        stem, keys, source = Path(name).stem, read_yaml(Path(name)), name
    elif name in names(kind):
        stem, keys, source = name, read_yaml(SHIPPED / kind / f"{name}.yaml"), f"{kind}/{name}.yaml"
    else:
        what, known = Path(kind).name[:-1], ", ".join(names(kind))
        of = f"{above[-1]}: base: " if above else ""
        raise UserError(f"{of}no {what} called '{name}': choose one of {known}, or give a YAML file")
    for section in sorted(SECTIONS & keys.keys()):
        if not isinstance(keys[section], dict) and (section, keys[section]) != ("augmentation", None):
            raise UserError(f"{source}: {section}: must hold keys; remove it if it has none")
    for key in ABOUT:
        keys.pop(key, None)
    refuse_filled_in(keys, source)
    if (base := keys.pop("base", None)) is not None:
        if not isinstance(base, str):
            raise UserError(
                f"{source}: base: must be the name of one of the {Path(kind).name}, or a YAML file, not {base!r}"
            )
        if base.endswith((".yaml", ".yml")):
            base = str((Path(name).parent / base).resolve())  # `..` and links must not hide a cycle
        keys = merge(read_named(kind, base, *above, name)[1], keys)
    of_that_name = Path(kind).name == "recipes" and not above and source == name and stem in names(kind)
    if of_that_name and keys != read_named(kind, stem)[1]:
        raise UserError(f"{name}: is not the recipe {stem}, and tables would count it as a seed of that; rename it")
    return stem, keys, source


def refuse_filled_in(keys: Mapping[str, Any], source: str) -> None:
    """Raise UserError if a file sets a key that the run itself fills in."""
    for name in sorted(FILLED_IN & flat(keys).keys()):
        fix = "and give --seed (SEEDS=)" if name == "seed" else "as the run fills it in"
        raise UserError(f"{source}: {name}: this is not a setting of a recipe or preset; remove it, {fix}")


# ---------------------------------------------------------------------------------------------------------------- keys


NETWORK = "which of the networks in models/; set by recipes (ours)"
SIZE = "sizes of the network by name, such as dense14; models/settings.py says what each means (ours)"
_NAMES = {"integer": "whole number", "boolean": "true or false", "string": "text", "null": "null"}
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "from", "exclusiveMaximum": "below", "maximum": "to"}


def settable() -> list[dict[str, str]]:
    """All keys that a recipe or preset may set, in the order of the schema; keys of the model for each network.

    `name` is the full one, such as training.optimizer.lr; `default` is JSON; `meaning` ends with its source.
    """
    for recipe in names("recipes"):
        network_of(read_named("recipes", recipe)[1].get("model", {}))  # finds a network that is in a file of its own
    fields = {name: field for name, field in schema(Config).items() if not name.startswith("model.")}
    sections = {name.rpartition(".")[0] for name in fields} | {"model"}
    listed = {name: field for name, field in fields.items() if name not in FILLED_IN | sections}
    sizes = dict.fromkeys(size for settings in NETWORKS.values() for size in settings.sizes)
    listed["model.network"] = {"enum": list(NETWORKS), "default": UNNAMED, "description": NETWORK}
    listed["model.size"] = {"enum": list(sizes), "default": "published", "description": SIZE}
    rows = key_rows(listed)
    for network in NETWORKS:
        own = {name: field for name, field in schema(Config, network).items() if name.startswith("model.")}
        del own["model.network"]
        rows += key_rows(own, f"{network}: ")
    return rows


def key_rows(fields: Mapping[str, dict[str, Any]], whose: str = "") -> list[dict[str, str]]:
    """The keys of a schema as `settable` gives them; each meaning begins with `whose`."""
    return [
        {
            "name": name,
            "type": _type(field),
            "default": json.dumps(field["default"]),
            "meaning": whose + field.get("description", ""),
        }
        for name, field in fields.items()
    ]


def key_lines(keys: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """Two lines for each key: its default and type, and its meaning."""
    for key in keys:
        yield f"{key['name']} = {key['default']}    {key['type']}"
        yield f"    {key['meaning']}"


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(part) for part in field["anyOf"])
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if field["type"] == "array":
        parts = field.get("prefixItems")
        return f"[{', '.join(map(_type, parts))}]" if parts else f"list of: {_type(field['items'])}"
    name = _NAMES.get(field["type"], "number")
    bounds = [f"{word} {field[bound]:g}" for bound, word in _BOUNDS.items() if bound in field]
    return " ".join([name, *bounds]) + (f" like {field['pattern']}" if "pattern" in field else "")
