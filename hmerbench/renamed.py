"""What the command lines of before are called now."""

import sys

VERBS = {"evaluation": {"doctor": "doctor --scorer", "convention": "editions"}}


def moved(module: str) -> str:
    """The line for `python -m MODULE VERB …`, which is the command running."""
    verb = next(iter(sys.argv[1:2]), "")
    folder = module.removeprefix("hmerbench.")
    if module == "evaluation" and any("scoreboard" in word for word in sys.orig_argv):  # its parent runs first
        folder = "evaluation.scoreboard"
    now = VERBS.get(folder, {}).get(verb, verb)
    group = "scoreboard " if folder.endswith("scoreboard") else ""
    return f"error: `python -m {module} {verb}` is now called `hmerbench {group}{now}` (or `python -m hmerbench …`)"
