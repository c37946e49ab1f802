"""What a number measures, in one line: `ExpRate|set:crohme2014|n:986|metric:symlg|conv:1.4|…|v:2`.

In the manner of sacreBLEU's signatures: two numbers may be compared if their signatures agree. They do not name
a search's precision, batch size and longest hypothesis.
"""

from hmerbench.evaluation import InputError
from hmerbench.evaluation.symlg import Rules

# Raised when a verdict on a system scored so far changes under the same fields. 1.0 named no edition: it followed the
# paper's, but read \text, matrices, $ and lone brackets as arguments differently. Learning a command that used to be
# refused does not raise it, nor did, within 2, blanks between column letters and what follows \& (as in no system).
VERSION = "2"


def signature_of(n: int, named: dict[str, str], rules: Rules | None) -> str:
    """The signature of a score over n expressions. `named` are set, search, select, tok where raw LaTeX was split into
    tokens, and wrap where more was removed around formulas than the official chain removes; `rules` is None for the
    scripts of LGEVAL_BIN, whose rules are unknown. Raises InputError for text that a signature cannot hold."""
    if odd := [text for text in named.values() if "|" in text or not text.isprintable()]:
        raise InputError(f"{odd[0]!r}: cannot be part of a signature; leave out | and line breaks")
    scorer = rules.versions if rules else {"scorer": "LGEVAL_BIN"}
    fields = {"set": named["set"], "n": str(n), "metric": "symlg", **scorer, "search": named["search"]}
    fields |= {key: named[key] for key in ("tok", "wrap") if key in named}
    fields |= {"select": named["select"], "v": VERSION}
    return "|".join(["ExpRate", *(f"{key}:{text}" for key, text in fields.items())])


def fields_of(signature: str) -> dict[str, str]:
    """The fields of a signature. Raises InputError."""
    name, *parts = signature.split("|")
    fields = dict(part.split(":", 1) for part in parts if ":" in part)
    if name != "ExpRate" or len(fields) < len(parts) or "v" not in fields:
        raise InputError(f"{signature[:80]!r}: this is not the signature of an expression rate")
    return fields
