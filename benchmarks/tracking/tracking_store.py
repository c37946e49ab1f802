"""Which store runs are mirrored to, and whether it can be used at all."""

import os
import re
import sqlite3
import ssl
import sys
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlparse
from urllib.request import urlopen

from benchmarks.errors import UserError

ANSWER_SECONDS = 5  # a store that takes longer to answer at all is not usable


def tracking_uri(folder: Path) -> str:
    """MLFLOW_TRACKING_URI, else the SQLite file of the workspace the run folder lies in."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{workspace_of(folder).resolve() / 'mlflow.db'}"


def store(folder: Path) -> str:
    """The tracking URI as it may be shown."""
    return without_password(tracking_uri(folder))


def without_password(text: str) -> str:
    """The text with no user and password in its addresses."""
    return re.sub(r"//[^/@\s]*@", "//", text)


def browse(results: Path, port: int) -> None:
    """Becomes MLflow's own user interface, on the loopback address only, over the store that was logged to.

    Raises UserError where there is nothing to look at, or a server that has its own.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if urlparse(uri).scheme in ("http", "https"):
        raise UserError(f"MLFLOW_TRACKING_URI is a server with a user interface of its own: open {uri} in a browser")
    if not uri:
        places = [results / "mlflow.db", *sorted(results.glob("local/*/mlflow.db"))]
        found = next((place for place in places if place.exists()), None)
        if found is None:
            raise UserError(f"{places[0]}: nothing was logged yet; run make reproduce-table2, or name another RESULTS=")
        uri = f"sqlite:///{found.resolve()}"
    print(f"MLflow at {without_password(uri)}: http://127.0.0.1:{port} (Ctrl-C ends it)", flush=True)
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    os.environ["MLFLOW_BACKEND_STORE_URI"] = uri  # not in the command line, where every user sees a password
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # there is nothing to run, only to see
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "ui", *options])


def workspace_of(folder: Path) -> Path:
    """WORKSPACE/{runs,reproduced}/recipe/name is where run folders lie."""
    return folder.resolve().parents[2]


def sqlite_path(uri: str) -> Path | None:
    """The file of a SQLite store."""
    path = urlparse(uri).path
    return Path(path[1:]) if uri.startswith("sqlite:") and len(path) > 1 else None


def has_content(path: Path) -> bool:
    """Whether there is such a file, with anything in it."""
    return path.exists() and path.stat().st_size > 0


def reach(uri: str) -> str:
    """What a server or database answers. Raises what its driver raises, within seconds where MLflow would retry for
    minutes: a database that is broken or locked, a host that is dead or mute."""
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
        unchecked = ssl._create_unverified_context()  # nothing is told or believed here; MLflow itself does check
        try:
            with urlopen(f"{server}/health", timeout=ANSWER_SECONDS, context=unchecked) as answer:
                return f"answers {answer.status}"
        except HTTPError as error:
            if error.code < 500:
                return f"answers {error.code}"  # if only to refuse
            raise
    if parsed.hostname or parsed.scheme.startswith("postgresql"):
        from sqlalchemy import NullPool, create_engine

        create_engine(uri, poolclass=NullPool, connect_args={"connect_timeout": ANSWER_SECONDS}).connect().close()
        return "lets us in"
    return "not tried: no host in it"


def bounded(uri: str) -> str:
    """PostgreSQL without a server before it waits for locks for ever; so it is told not to."""
    if not uri.startswith("postgresql") or "options=" in uri:
        return uri
    limits = f"connect_timeout={ANSWER_SECONDS}&options=-c%20lock_timeout%3D{ANSWER_SECONDS}s"
    return f"{uri}{'&' if '?' in uri else '?'}{limits}"
