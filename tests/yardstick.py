"""How much work something is, told without seconds: a slow or busy machine slows the yardstick, too."""

import time
from collections.abc import Callable

SOON = 60  # about what a second holds, and half as much again; anything quadratic takes hundreds of times as long


def work(action: Callable[[], object]) -> float:
    """CPU time of `action`, in passes of an empty loop of a million steps (some 25 ms each) timed around it."""
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
