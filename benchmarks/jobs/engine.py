"""The engine that runs jobs: processes on this machine, which share a GPU by a service of NVIDIA, or the nodes of a Ray
cluster.

An engine starts named jobs and reports which have ended, with what they raised. A job is a function whose first
argument is its Place. Its process imports this file first, which imports torch only where it is used.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hmerbench.benchmarks.errors import (
    FAULTS,
    NO_MEMORY,
    Lost,
    UserError,
    gpu_failure,
    lacks_memory,
    out_of_memory_reason,
)
from hmerbench.benchmarks.jobs.place import Bystander, Died, Killed, Place
from hmerbench.benchmarks.printing import err_console
from hmerbench.benchmarks.runtime import CORES, ON_GPU, configure_libraries, configure_output, cores

if TYPE_CHECKING:
    from hmerbench.benchmarks.jobs.ray_cluster import Ray

    Engine: TypeAlias = "Processes | Ray"

ENGINES = ("local", "ray")
RECOVERY = 30  # seconds: a GPU that failed is well again when all that used it have ended
RUN_CORES, RUN_GIB = 2, 8  # of a run among others on a GPU: cores to train and to prepare batches, memory of the device


@dataclass(frozen=True)
class Placing:
    """The engine, the number of jobs at a time (runs on this machine, or workers of a study; None: as many as fill its
    GPUs, one without), and the CPUs and GPUs of each on a cluster; `gpus` None: one if any node has a GPU."""

    engine: str = "local"
    jobs: int | None = None
    cpus: float = 1
    gpus: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(f"no engine called '{self.engine}': choose {' or '.join(ENGINES)}")
        if self.engine == "local" and (self.cpus, self.gpus) != (1, None):
            raise UserError("--cpus and --gpus are for the engine ray; local jobs share this machine")

    def at_once(self, runs: int) -> int:
        """How many of `runs` runs to do at a time: on a cluster, as many as have room."""
        if self.engine == "ray":
            return runs
        if self.jobs is not None:
            return self.jobs
        import torch

        if not (gpus := usable_gpus()):
            return 1
        gib = sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in range(gpus)) / 2**30
        return max(1, min(runs, cores() // RUN_CORES, int(gib / RUN_GIB)))

    def open(self, data: Path, workspace: Path, logs: Path, jobs: int) -> "Engine":
        """Start the engine for at most `jobs` jobs at a time on `data`. Jobs on this machine log to `logs`."""
        if self.engine == "ray":
            from hmerbench.benchmarks.jobs.ray_cluster import Ray

            return Ray(data, workspace, self.cpus, self.gpus)
        return Processes(data, workspace, logs, jobs)


def usable_gpus() -> int:
    """How many GPUs torch can use: NVIDIA's library counts those with a driver too old for it, too."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


WORK = (
    "torch._dynamo",  # torch imports it, in a second, as soon as there is an optimizer
    "hmerbench.benchmarks.training.trainer",
    "hmerbench.benchmarks.recognition.predict",
    "hmerbench.benchmarks.score",
)


class Processes:
    """Each job is a process of its own, all run at once, and none outlives this one. Their stderr goes to `logs`.

    Jobs that share a GPU share it through NVIDIA's MPS, where that can be started.
    """

    def __init__(self, data: Path, workspace: Path, logs: Path, share: int):
        self.place, self.logs, self.cores = Place(data, workspace), logs, max(1, cores() // share)
        self.threads = None if "OMP_NUM_THREADS" in os.environ else self.cores
        self.devices = usable_gpus()
        self.service = MultiProcessService() if self.devices and share > self.devices else None
        if self.service and PIPE in os.environ:  # a process for each core reads, and the job is one besides
            self.cores = max(1, min(self.cores, CLIENTS // -(-share // self.devices) - 1))
        self.running: dict[str, tuple[Any, connection.Connection, int | None]] = {}  # process, result, device

    def start(self, name: str, job: Callable[..., None], *arguments: Any) -> None:
        """Start job(place, *arguments) in a process of its own."""
        context = _context(job, on_gpu=self.devices > 0)
        receiver, sender = context.Pipe(duplex=False)
        jobs_on = Counter(device for *_, device in self.running.values())
        device = min(range(self.devices), key=jobs_on.__getitem__) if self.devices > 1 else None
        environment = os.environ | {CORES: str(self.cores)} | ({ON_GPU: "1"} if self.devices else {})
        if device is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[device] if visible else str(device)
        settings = sender, self._log(name), environment, self.threads
        process = context.Process(target=_process, args=(*settings, job, self.place, *arguments), name=name)
        process.start()
        sender.close()
        self.running[name] = process, receiver, device

    def ended(self, seconds: float) -> dict[str, Exception | None]:
        """Wait at most `seconds` for a job to end; return the jobs that ended, with what they raised. If one died where
        there are GPUs, RECOVERY is waited besides.

        If it was killed while it shared them through MPS, the others are stopped, and MPS, unless it is the user's, is
        started anew: a client that a signal ends amid its work may leave both undefined (NVIDIA's documentation of MPS,
        "Client Early Termination").
        """
        connection.wait([process.sentinel for process, *_ in self.running.values()], seconds)
        names = [name for name, (process, *_) in self.running.items() if not process.is_alive()]
        ended = {name: self._result(name, *self.running.pop(name)[:2]) for name in names}
        killed = [name for name, error in ended.items() if isinstance(error, Killed)]
        if undefined := bool(killed and self.service and PIPE in os.environ):
            reason = f"stopped, as {killed[0]}, which shared its GPU, was killed"
            ended |= dict.fromkeys(self.running, Bystander(reason))
            self.stop()
        if self.devices and any(isinstance(error, Died) for error in ended.values()):
            time.sleep(RECOVERY)
        if undefined:
            self.service = MultiProcessService()
        return ended

    def _result(self, name: str, process: Any, pipe: connection.Connection) -> Exception | None:
        process.join()
        try:
            return pipe.recv()
        except EOFError:
            if (code := process.exitcode or 0) < 0:
                return Killed(f"killed by {signal.Signals(-code).name}; see {self._log(name)}")
            return Died(f"ended with status {code}; see {self._log(name)}")

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def stop(self) -> None:
        """Kill the jobs that are still running."""
        for process, *_ in self.running.values():
            process.kill()
            process.join(SECONDS)  # a driver that hangs may keep it
        self.running.clear()
        if self.service:
            self.service.stop()


def _context(job: Callable[..., None], on_gpu: bool) -> Any:
    """How a job's process begins: a GPU does not survive a fork. Else it is forked off a process without threads that
    has imported what jobs need, once for all of them: in a tenth of a second, not in three."""
    if on_gpu or sys.platform != "linux":
        return get_context("spawn")
    context, path = get_context("forkserver"), os.environ.get("PYTHONPATH")
    context.set_forkserver_preload([job.__module__, *WORK])
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # it imports from where this process does
    forkserver.ensure_running()
    os.environ.pop("PYTHONPATH")
    os.environ |= {"PYTHONPATH": path} if path is not None else {}
    return context


def _process(
    pipe: connection.Connection,
    log: Path,
    environment: Mapping[str, str],
    threads: int | None,
    job: Callable[..., None],
    *arguments: Any,
) -> None:
    """Run a job in this process, which ends with its parent, leaves Ctrl-C to it, and sends it what the job raises."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)  # a process that is forked has that of its server's start
    configure_libraries()
    configure_output()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as file:
            os.dup2(file.fileno(), sys.stderr.fileno())
        job(*arguments)
    except Lost as error:
        kind = Died if NO_MEMORY.search(str(error)) else Killed
        pipe.send(kind(f"{error}; see {log}"))
    except (*FAULTS, OSError) as error:  # OSError: such as a full disk
        pipe.send(error)
    except Exception as error:
        traceback.print_exc()
        if failure := gpu_failure(error):  # for this process only: another one may find it well again
            pipe.send(Died(f"its GPU failed ({failure}); see {log}"))
            return
        if lacks_memory(error):  # there may be more when others have ended
            pipe.send(Died(f"{out_of_memory_reason(error)}; see {log}"))
            return
        text = f"{type(error).__name__}: {error}"[:2000]  # more would fill the pipe, and this process would wait
        pipe.send(RuntimeError(f"{text}; {log} shows where"))
    else:
        pipe.send(None)


CONTROL, PIPE, LOG = "nvidia-cuda-mps-control", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PROBE = "import torch; torch.zeros(1, device='cuda')"
CLIENTS = 48  # processes that can use a GPU through it at a time, since Volta
SECONDS = 60  # within which it must start, and a process use a GPU through it


class MultiProcessService:
    """A service of one's own, for the processes started while it runs; one that is there already is left alone.

    It changes no setting of the GPU. Where it cannot be started or used, a line says so, and nothing depends on it.
    """

    def __init__(self) -> None:
        self.control, self.folder = shutil.which(CONTROL), ""
        if PIPE in os.environ or not self.control:
            if not self.control:
                err_console.print(f"without {CONTROL}, runs take turns on the GPU")
            return
        self.folder = tempfile.mkdtemp(prefix="mps")
        os.environ |= {PIPE: self.folder, LOG: self.folder}
        try:
            # which GPUs are visible is left to its clients: it would number those that it sees from 0
            every = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
            start, null = [self.control, "-d"], subprocess.DEVNULL
            subprocess.run(start, check=True, stdin=null, capture_output=True, timeout=SECONDS, env=every)
            subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            err_console.print(f"{CONTROL} cannot be used ({type(error).__name__}): runs take turns on the GPU")
            self.stop()

    def stop(self) -> None:
        if self.folder and self.control:
            with suppress(OSError, subprocess.SubprocessError):
                order = f"quit -t {SECONDS // 3}\n".encode()  # a server that hangs by then is ended
                subprocess.run([self.control], input=order, capture_output=True, timeout=SECONDS)
            shutil.rmtree(self.folder, ignore_errors=True)
            os.environ.pop(PIPE, None)
            os.environ.pop(LOG, None)
            self.folder = ""
