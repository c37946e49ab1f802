"""A PostgreSQL server for tests: Debian's package, a cluster in a temporary folder, a free port on the loopback device.

def test_something(postgres: Postgres) -> None:
    url = postgres.url("a_new_database")
    postgres.stop()  # and start() again, to see what a job makes of that
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

OPTIONS = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "shared_buffers=16MB")


@dataclass(frozen=True)
class Postgres:
    binaries: Path
    folder: Path
    port: int

    def start(self) -> None:
        options = " ".join(f"-c {option}" for option in (*OPTIONS, f"port={self.port}"))
        self.call("pg_ctl", "start", "-w", "-l", str(self.folder / "log"), "-o", options)

    def stop(self) -> None:
        """Stop immediately, as in a power failure."""
        self.call("pg_ctl", "stop", "-m", "immediate")

    def call(self, program: str, *arguments: str) -> None:
        user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
        done = subprocess.run(
            [self.binaries / program, "-D", self.folder / "data", *arguments],
            user=user,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{program} failed; see {self.folder}"

    def url(self, database: str) -> str:
        """The URL of a new, empty database."""
        import psycopg2

        where = f"postgresql://hmer@127.0.0.1:{self.port}"
        connection = psycopg2.connect(f"{where}/postgres")
        connection.autocommit = True
        connection.cursor().execute(f'CREATE DATABASE "{database}"')
        connection.close()
        return f"{where.replace('://', '+psycopg2://')}/{database}"  # SQLAlchemy's form


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running server; the test is skipped if PostgreSQL is not installed."""
    pytest.importorskip("psycopg2")
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if (initdb := shutil.which("initdb")) and shutil.which("pg_ctl"):
        binaries = [Path(initdb).parent]
    if not binaries:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="hmerbench-postgres-"))
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Postgres(binaries[-1], folder, port)
    try:
        server.call("initdb", "--no-sync", "--auth", "trust", "--username", "hmer")
        server.start()
        yield server
    finally:
        if (folder / "data/postmaster.pid").exists():
            server.stop()
        shutil.rmtree(folder)
