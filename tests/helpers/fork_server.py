"""One fork server per test process, which has imported what any of its processes needs, whatever test comes first."""

from multiprocessing import forkserver
from typing import Any

from hmerbench.benchmarks.jobs.engine import WORK, _context

PRELOADED = [
    *("tests.helpers.disk", *WORK, "tests.helpers.tiny", "tests.helpers.made_up_jobs"),
    # what tracking imports, at once or only when it is asked for
    *("mlflow.store.tracking.sqlalchemy_store", "mlflow.pyfunc", "alembic.command"),
    *(f"hmerbench.benchmarks.tracking.{name}" for name in ("track", "mirror", "logged_model")),
    "hmerbench.benchmarks.recognition.recognizer",
]


def share_fork_server() -> None:
    """Let this process's fork server import PRELOADED. Else whoever starts it decides, and each process that another
    test forks off it imports torch or MLflow anew, in seconds."""
    forkserver.set_forkserver_preload(PRELOADED)
    forkserver.set_forkserver_preload = lambda _: None


def forked() -> Any:
    """The context of processes that begin as those of jobs do."""
    return _context(forked, on_gpu=False)
