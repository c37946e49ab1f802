"""Every key of a recipe or preset with its type, range, default and meaning, all from its class."""

import json
from collections.abc import Iterator
from typing import Any

from hmerbench.benchmarks.config import FILLED_IN, Config
from hmerbench.benchmarks.resolve import names, read_named
from hmerbench.benchmarks.validation import network_of, schema
from hmerbench.models.settings import NETWORKS, UNNAMED

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
    rows = [_row(name, field, field.get("description", "")) for name, field in listed.items()]
    for network in NETWORKS:
        own = {name: field for name, field in schema(Config, network).items() if name.startswith("model.")}
        del own["model.network"]
        rows += [_row(name, field, f"{network}: {field.get('description', '')}") for name, field in own.items()]
    return rows


def _row(name: str, field: dict[str, Any], meaning: str) -> dict[str, str]:
    return {"name": name, "type": _type(field), "default": json.dumps(field["default"]), "meaning": meaning}


def lines() -> Iterator[str]:
    """Two lines for each key: its default and type, and its meaning."""
    for key in settable():
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
