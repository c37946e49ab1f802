"""The tracking store that runs are mirrored to, and whether it is usable."""

import os
import re
import sqlite3
import ssl
import sys
import tempfile
from contextlib import AbstractContextManager, closing, suppress
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlparse
from urllib.request import urlopen

from hmerbench.benchmarks.errors import UserError, without_secrets
from hmerbench.benchmarks.files import locked

ADDRESSES = {  # of artifacts, by MLflow's tables
    "experiments": {"artifact_location"},
    "runs": {"artifact_uri"},
    "logged_models": {"artifact_location"},
    "model_versions": {"source", "storage_location"},
}
VIEW = "hmerbench"  # of the user interface, which the mirror keeps
ANSWER_SECONDS = 5  # a store that takes longer to answer counts as unusable
LOCK_SECONDS = 60  # to wait for another process that writes to it


def uri_in(workspace: Path) -> str:
    """MLFLOW_TRACKING_URI, otherwise the SQLite file of a workspace."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{workspace.resolve() / 'mlflow.db'}"


def tracking_uri(folder: Path) -> str:
    """The store to which a run folder WORKSPACE/{runs,reproduced}/recipe/name is logged."""
    return uri_in(folder.resolve().parent.parent.parent)


def store(folder: Path) -> str:
    """The tracking URI without its secrets, for display."""
    return without_secrets(tracking_uri(folder))


def writing(uri: str) -> AbstractContextManager[None]:
    """Hold the lock of a store, so that no other process of this user on this machine writes to it: it lies beside a
    SQLite file, or among temporary files."""
    if path := sqlite_path(uri):
        return locked(path.parent, f"{path.name}.lock", LOCK_SECONDS)
    temporary = Path(tempfile.gettempdir(), f"hmerbench-{os.getuid()}")
    return locked(temporary, f"{sha256(uri.encode()).hexdigest()[:16]}.lock", LOCK_SECONDS)


def browse(results: Path, port: int) -> None:
    """Replace this process by MLflow's user interface for the store in use, on the loopback address only.

    Raises UserError if nothing was logged yet, or if the store is a server, which has its own interface.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    shown = without_secrets(uri)
    if uri.startswith(("http://", "https://")):
        raise UserError(f"MLFLOW_TRACKING_URI is a server with its own user interface: open {shown} in a browser")
    if uri and not re.fullmatch(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://(?!.*…).*", shown):  # MLflow would print it
        raise UserError(f"MLFLOW_TRACKING_URI={shown}: this is not the address of a database; correct or unset it")
    if not uri:
        database = next(iter(databases(results)), None)
        if database is None:
            raise UserError(
                f"{results / 'mlflow.db'}: nothing was logged yet; run make reproduce-table2, or name another RESULTS="
            )
        uri = f"sqlite:///{database.resolve()}"
    address = f"http://127.0.0.1:{port}"
    if (path := sqlite_path(uri)) and has_content(path):
        with suppress(sqlite3.Error):  # a database that may only be read can still be shown
            find_artifacts(path)
        address += _runs(path)
    print(f"MLflow at {without_secrets(uri)}: {address} (Ctrl-C to stop)", flush=True)
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    os.environ["MLFLOW_BACKEND_STORE_URI"] = uri  # not on the command line, where every user could see the password
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # read-only use
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "ui", *options])


def _runs(database: Path) -> str:
    """The part of the user interface's address that opens the runs of our latest experiment: by itself it opens on
    traces of language models, which we have none of."""
    latest = "SELECT experiment_id FROM experiments WHERE name LIKE 'hmerbench%' ORDER BY last_update_time DESC"
    known = "SELECT 1 FROM experiment_tags WHERE experiment_id = ? AND key = ?"
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        for (number,) in connection.execute(latest):
            has_view = connection.execute(known, (number, f"mlflow.sharedViewState.{VIEW}")).fetchone()
            view = f"&viewStateShareKey={VIEW}" if has_view else ""  # language models have none
            return f"/#/experiments/{number}/runs?workflowType=machine_learning{view}"
    return ""


def databases(results: Path) -> list[Path]:
    """The SQLite files of the workspaces in a folder of results, CROHME's first."""
    return [path for path in (results / "mlflow.db", *sorted(results.glob("local/*/mlflow.db"))) if path.exists()]


def sqlite_path(uri: str) -> Path | None:
    """The file of a SQLite store, None for other stores."""
    scheme, _, path = uri.partition("?")[0].partition(":///")  # a folder may be called C#
    return Path(path) if scheme.startswith("sqlite") and path else None


def has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def artifacts_beside(database: Path) -> str:
    """Where the artifacts of a SQLite database belong, as the address that MLflow writes into it."""
    return (database.resolve().parent / "mlartifacts").as_uri()


def artifacts_elsewhere(database: Path) -> list[str]:
    """The other addresses that a SQLite database names for our artifacts: MLflow writes them in full, so that a folder
    that was moved or copied still names its old place."""
    with closing(sqlite3.connect(database, timeout=ANSWER_SECONDS)) as connection:
        ours = "SELECT DISTINCT artifact_location FROM experiments WHERE name LIKE 'hmerbench%'"
        named = [address for (address,) in connection.execute(ours)] if _columns(connection, "experiments") else []
    here = artifacts_beside(database)
    return [address for address in named if re.fullmatch("file:///.*/mlartifacts", address) and address != here]


def find_artifacts(database: Path) -> list[str]:
    """Make a SQLite database that was moved or copied together with its artifacts name their present place. Returns the
    addresses of artifacts that it was moved without."""
    here, left = artifacts_beside(database), list[str]()
    for old in artifacts_elsewhere(database):
        if not _folder(here).is_dir() and _folder(old).is_dir():
            left.append(old)
            continue
        with closing(sqlite3.connect(database, timeout=ANSWER_SECONDS)) as connection, connection:
            for table, columns in ADDRESSES.items():
                for column in _columns(connection, table) & columns:
                    change = f"UPDATE {table} SET {column} = ? || substr({column}, ?)"
                    within = f"substr({column} || '/', 1, ?) = ?"
                    connection.execute(f"{change} WHERE {within}", (here, len(old) + 1, len(old) + 1, f"{old}/"))
    return left


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _folder(address: str) -> Path:
    return Path(unquote(urlparse(address).path))


def reach(uri: str) -> str:
    """Check that a server or database answers, and describe the answer.

    Raises the driver's error within seconds, where MLflow would retry for minutes, if a database is broken or locked or
    a host is down or does not respond.
    """
    parsed = urlparse(uri)
    if path := sqlite_path(uri):
        if not has_content(path):
            return "will be made"
        with closing(sqlite3.connect(path, timeout=ANSWER_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("PRAGMA schema_version").fetchone()
            database.execute("ROLLBACK")
        return "can be written"
    if parsed.scheme in ("http", "https"):
        server = parsed._replace(netloc=parsed.netloc.rpartition("@")[2]).geturl().rstrip("/")
        unchecked = ssl._create_unverified_context()  # nothing is sent or trusted here; MLflow verifies certificates
        try:
            with urlopen(f"{server}/health", timeout=ANSWER_SECONDS, context=unchecked) as answer:
                return f"answers {answer.status}"
        except HTTPError as error:
            if error.code < 500:
                return f"answers {error.code}"  # even a refusal shows that it is up
            raise
    if parsed.hostname or parsed.scheme.startswith("postgresql"):
        from sqlalchemy import NullPool, create_engine

        create_engine(uri, poolclass=NullPool, connect_args={"connect_timeout": ANSWER_SECONDS}).connect().close()
        return "accepts connections"
    return "not checked: the address names no host"


def bounded(uri: str) -> str:
    """Add timeouts to a PostgreSQL URI: without them a direct connection waits for locks forever."""
    if not uri.startswith("postgresql") or "options=" in uri:
        return uri
    limits = f"connect_timeout={ANSWER_SECONDS}&options=-c%20lock_timeout%3D{ANSWER_SECONDS}s"
    return f"{uri}{'&' if '?' in uri else '?'}{limits}"
