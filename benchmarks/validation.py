"""Keys are validated as settings: what is wrong is said in one line, with the key that was probably meant."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from hmerbench.benchmarks.errors import UserError
from hmerbench.models.settings import NETWORKS, UNNAMED, settings_class

Settings = TypeVar("Settings", bound=BaseModel)


def network_of(model: object) -> str:
    """The network that keys of a model name; UNNAMED if they name none, or an unusable one, to be refused later."""
    with suppress(ValueError):
        if isinstance(model, Mapping) and (settings := settings_class(model.get("network"))):
            return settings.network
    return UNNAMED


def validate(model: type[Settings], keys: Mapping[str, Any], source: str) -> Settings:
    """Validate `keys` as a `model`, such as Config.

    Raises UserError, beginning with `source`, for the first fault; for an unknown key, it suggests the closest one.
    """
    try:  # through JSON: strict types, but YAML's lists are accepted as tuples
        return model.model_validate_json(json.dumps(keys, default=str))
    except ValidationError as error:
        first, count, fault = error.errors()[0], error.error_count(), first_fault(error)
        if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            where = ".".join(map(str, first["loc"]))
            nearest = _nearest(where, list(schema(model, network_of(keys.get("model", {})))))
            hint = f"; did you mean {nearest}?" if nearest else ""
            if nearest == where:  # written with dots, as on the command line
                hint = f"; write `{where.replace('.', ': {')}: …{'}' * where.count('.')}`"
            fault = f"{where}: no such key{hint}"
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise UserError(f"{source}: {fault}{more}") from None


def first_fault(error: ValidationError, start: int = 0) -> str:
    """The first fault, after its location: keys, and list indices, which count from `start`."""
    first = error.errors()[0]
    where = ".".join(str(part + start) if isinstance(part, int) else part for part in first["loc"])
    return f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}"


def schema(model: type[BaseModel], network: str = UNNAMED) -> dict[str, dict[str, Any]]:
    """JSON schema of every key and section, by full name (training.optimizer.lr); the model has those of `network`."""
    whole, settings = model.model_json_schema(), TypeAdapter(NETWORKS[network]).json_schema()
    for kind in NETWORKS[network].__mro__:  # pydantic leaves out the docstrings of inherited settings
        for name, field in getattr(kind, "__pydantic_fields__", {}).items():
            if field.description:
                settings["properties"][name]["description"] = field.description

    def fields(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, field in section["properties"].items():
            yield prefix + name, field
            if prefix + name == "model" and "$ref" not in field:  # of any network
                yield from fields(settings, "model.")
            for part in (field, *field.get("anyOf", ())):
                if "$ref" in part:
                    yield from fields(whole["$defs"][part["$ref"].rpartition("/")[2]], f"{prefix}{name}.")

    return dict(fields(whole, ""))


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The most similar key, among siblings first, then anywhere; those of a network resemble no others."""
    section, _, key = name.rpartition(".")
    siblings = {full.rpartition(".")[2]: full for full in names if full.rpartition(".")[0] == section}
    anywhere = {full.rpartition(".")[2]: full for full in reversed(names)}
    for known in (siblings,) if section == "model" else (siblings, anywhere):
        if close := difflib.get_close_matches(key, known, 1):
            return known[close[0]]
    return None
