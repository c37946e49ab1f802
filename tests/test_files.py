"""Downloading from a local server that can cut, refuse and redirect."""

import contextlib
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import download

CONTENT = bytes(range(256)) * 4000


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content` at /data.zip; `cut_at` ends a reply early."""

    content, cut_at = CONTENT, 0

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data.zip"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/moved.zip":
            self.send_response(302)
            self.send_header("Location", "/data.zip")
            self.end_headers()
        elif self.path == "/data.zip":
            self.send_file()
        else:
            self.send_error(404)

    def send_file(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may have given up
            self.wfile.write(self.server.content[: self.server.cut_at or None])

    def log_message(self, format: str, *args) -> None:
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def fetch(server: Server, folder: Path) -> Path:
    return download(folder / "data.zip", server.url, blob(server.content))


def test_a_complete_download_leaves_one_file(server: Server, tmp_path: Path) -> None:
    target = fetch(server, tmp_path / "new")
    assert target.read_bytes() == CONTENT and os.listdir(target.parent) == ["data.zip"]


def test_a_cut_connection_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.cut_at = 300_000
    with pytest.raises(UserError, match=r"expected the digest .*; run it again, or give another address"):
        fetch(server, tmp_path)
    assert not os.listdir(tmp_path)
    server.cut_at = 0
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_a_wrong_file_keeps_the_old_one(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.zip").write_bytes(b"old")
    with pytest.raises(UserError, match=f"expected the digest 00, got {blob(CONTENT)}"):
        download(tmp_path / "data.zip", server.url, "00")
    assert (tmp_path / "data.zip").read_bytes() == b"old" and os.listdir(tmp_path) == ["data.zip"]


def test_a_redirect_is_followed(server: Server, tmp_path: Path) -> None:
    moved = server.url.replace("data.zip", "moved.zip")
    assert download(tmp_path / "d.zip", moved, blob(CONTENT)).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("{}x", "HTTP Error 404: Not Found"),
        ("http://127.0.0.1:9/data.zip", "Connection refused"),
        ("data.zip", "unknown url type"),
    ],
)
def test_errors_are_one_line(server: Server, tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"{message}.*; run it again, or give another address"):
        download(tmp_path / "d.zip", url.format(server.url), "00")
    assert not os.listdir(tmp_path)


def test_a_full_disk_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "full.zip.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match="No space left on device"):
        download(tmp_path / "full.zip", server.url, "00")
