"""One thread per test process: several run in parallel, and sums are rounded the same on every machine.

With CI set, a test that is skipped although it must run there fails the whole run.
"""

import os
import sys

sys.dont_write_bytecode = False  # as containers say: each process that a test starts would compile the suite anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from hmerbench.benchmarks.runtime import configure_libraries  # noqa: E402

configure_libraries()
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # where a test has two threads, the one that waits leaves its core
os.environ["HMERBENCH_RESULTS"] = "results"  # relative to a test's working folder, not the project's

import gc  # noqa: E402
import re  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

import tests.helpers.disk  # noqa: E402, F401  (does not wait for it)
from tests.helpers.browser import engine  # noqa: E402, F401  (a fixture)
from tests.helpers.database import postgres  # noqa: E402, F401  (a fixture)
from tests.helpers.paths import CROHME, MEDIUM  # noqa: E402

if TYPE_CHECKING:
    from hmerbench.benchmarks.recognition.recognizer import Recognizer

gc.set_threshold(50_000, 50, 50)  # what is imported and kept is searched for cycles less often: a fifth of a scoring

# a commit always gives the same answer; with HYPOTHESIS_PROFILE=explore (or --hypothesis-profile), new cases are tried
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# what a public machine lacks: licensed data, reference sets made from it, others' predictions, pandoc 2.17, a GPU,
# LaTeX
MAY_BE_SKIPPED = re.compile(
    r"CROHME|Penn Treebank|golden|/ink|inkml|pandoc|folder of systems|GPU|LaTeX|npm registry|on Linux only",
    re.IGNORECASE,
)
SERVICES_ALONE = {"test_ray_cluster.py", "test_page_in_browser.py"}  # import what `make test` does not install
SERVICES = {"postgres", "engine", "cluster"}  # fixtures: a server of PostgreSQL, Chromium, a cluster of Ray
skipped: list[str] = []


@pytest.fixture(scope="session")
def crohme() -> Path:
    """CoMER's data.zip: the path in CROHME, else ../shared; the test is skipped if there is neither."""
    if not CROHME.exists():
        pytest.skip("CROHME is not here: `make crohme`, or set CROHME to its data.zip")
    return CROHME


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny archive for the tests of a module."""
    from tests.helpers.tiny import tiny_archive

    return tiny_archive(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def bf16_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are computed in bf16 where settings say so, even by a processor that must emulate them."""
    import torch

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)


@pytest.fixture(scope="session")
def medium() -> "Recognizer":
    from hmerbench.benchmarks.recognition.recognizer import Recognizer

    return Recognizer.load(MEDIUM)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables: creating one takes seconds, copying it does not."""
    from mlflow import MlflowClient  # takes seconds

    database = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{database}").search_experiments()
    return database


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    without_services = config.option.markexpr.startswith("not services")
    return (collection_path.name in SERVICES_ALONE and without_services) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that ask for a service are marked so; files with a test that is `long` come first."""
    for item in items:
        if SERVICES & {*getattr(item, "fixturenames", ())}:
            item.add_marker("services")
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """What only a process that runs tests needs: not the one that hands them out, for which the others wait."""
    import torch

    from tests.helpers.fork_server import share_fork_server

    torch.set_num_threads(1)
    share_fork_server()
    gc.freeze()  # what was imported is not searched for cycles again


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not MAY_BE_SKIPPED.search(reason):
            skipped.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and skipped and not hasattr(session.config, "workerinput"):
        print("\nskipped, but must run in CI:", *dict.fromkeys(skipped), sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
