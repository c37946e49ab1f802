"""What the commands of before are called now."""

import sys

GROUPS = {"benchmarks": "", "evaluation": "", "evaluation.scoreboard": "scoreboard"}  # by module that was a program
VERBS = {"convention": "editions", "precision": "trial", "search": "tune", "speed": "bench"}
GONE = {"bench-scoring", "cost", "gpu-check", "import-weights", "migrate", "recombine", "rescore", "timings"}


def moved(package: str) -> str:
    """The line for `python -m PACKAGE… VERB …`, which is the command running."""
    words = (word.removeprefix("-m") for word in sys.orig_argv)
    module = next((word for word in words if f"{word}.".startswith(f"{package}.")), package)
    group = GROUPS.get(module.removeprefix("hmerbench."))
    if group is None:
        return f"error: {package}/ is imported as hmerbench.{package}; `hmerbench --help` lists the commands"
    verb = next(iter(sys.argv[1:2]), "")
    now = "doctor --scorer" if (module, verb) == ("evaluation", "doctor") else VERBS.get(verb, verb)
    return f"error: {_told(f'python -m {module} {verb}', f'hmerbench {group} {now}', verb)}"


def renamed(verb: str) -> str:
    """The line for `hmerbench VERB …` of before; empty for a verb that never was one."""
    return _told(f"hmerbench {verb}", f"hmerbench {VERBS.get(verb)}", verb) if verb in VERBS.keys() | GONE else ""


def _told(before: str, now: str, verb: str) -> str:
    if verb in GONE:
        return f"`{before}` is gone; `hmerbench --help` lists the commands"
    return f"`{before.strip()}` is now called `{' '.join(now.split())}` (or `python -m hmerbench …`)"
