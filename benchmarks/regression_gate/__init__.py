"""The regression gate: a short, fixed job and the baseline it is compared with."""

import hashlib
import json
from collections.abc import Mapping

Values = dict[str, int | float | str]  # of the fixed job's items, by name


def digest(texts: Mapping[str, str]) -> str:
    """Twelve hex digits over texts by name."""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:12]
