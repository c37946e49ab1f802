"""Jobs for tests of the engines; a process that runs one imports this module and little else."""

import os
import signal
import sys
import time
from pathlib import Path

from hmerbench.benchmarks.errors import Lost, UserError
from hmerbench.benchmarks.jobs.place import Place


def ends(place: Place, name: str) -> None:
    place.pull(name).write_text(place.archive().name)


def fails(place: Place) -> None:
    print("a line on stderr", file=sys.stderr)
    raise UserError("a fix")


def crashes(place: Place) -> None:
    raise KeyError("2016")


def is_killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def loses_its_gpu(place: Place) -> None:
    raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later")


def loses_a_process(place: Place) -> None:
    raise Lost("a process that reads was lost")


def lacks_room_to_record(place: Place) -> None:
    raise Lost("CUDA out of memory, to record a training step")


def lacks_room(place: Place) -> None:
    raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later")


def asks_for_its_device(place: Place) -> None:
    from hmerbench.benchmarks.environment import best_device  # imports torch, which other jobs do without

    best_device()


def waits(place: Place, name: str) -> None:
    place.pull(name).write_text(str(os.getpid()))
    time.sleep(600)


def writes_its_device(place: Place, name: str) -> None:
    place.pull(name).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    if name == "first":
        wait_for(place.pull("third"))


def wait_for(path: Path, seconds: float = 300) -> str:
    deadline = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"nothing wrote {path}"
        time.sleep(0.05)
    return path.read_text()
