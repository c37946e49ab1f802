"""How much work something is, told without seconds, which a slow or busy machine stretches tenfold."""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(action: Callable[[], object]) -> int:
    """The lines of Python that `action` runs: the same number on every machine."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines


def loops(action: Callable[[], object]) -> float:
    """CPU time of `action`, in passes of an empty loop of a million steps timed around it.

    For work inside one call of a regular expression, where no line of Python is run. The machine's pace can
    change tenfold from one moment to the next, so only a difference of orders of magnitude says anything.
    """
    before = _loop()
    began = time.process_time()
    action()
    taken = time.process_time() - began
    return taken / max(before, _loop())


def _loop() -> float:
    began = time.process_time()
    for _ in range(1_000_000):
        pass
    return time.process_time() - began
