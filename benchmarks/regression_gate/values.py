"""The values of the fixed job's items, by name."""

import hashlib
import json
from collections.abc import Mapping

Values = dict[str, int | float | str]


def digest(texts: Mapping[str, str]) -> str:
    """Twelve hex digits over texts by name."""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:12]
