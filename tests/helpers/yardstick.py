"""Measures of work other than seconds, which a slow or busy machine stretches tenfold."""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(action: Callable[[], object]) -> int:
    """Number of Python lines that `action` executes, which is the same on every machine."""
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

    For work inside a single call, such as a regular expression's, which executes no Python line. The machine's speed
    can change tenfold from one moment to the next, so only orders of magnitude are meaningful.
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
