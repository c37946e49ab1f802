"""Downloading from a local server that can cut, refuse, redirect and swap the file."""

import contextlib
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hmerbench.benchmarks import files as module
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import download

CONTENT = bytes(range(256)) * 4000


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content` at /data.zip; `cut_at` ends a reply early; `ranges`: whether it can resume one."""

    content, cut_at, ranges = CONTENT, 0, True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges_requested: list[str | None] = []

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
        server, wanted = self.server, self.headers["Range"]
        server.ranges_requested.append(wanted)
        start = 0
        if wanted and server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(server.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may have given up
            self.wfile.write(server.content[start : server.cut_at or None])

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


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CURL", ("curl", "--silent", "--fail", "--location"))


def cut(server: Server, folder: Path, at: int = 300_000) -> None:
    server.cut_at = at
    with pytest.raises(UserError, match=r"bytes (remaining to read|missing); run it again to resume"):
        fetch(server, folder)
    server.cut_at = 0
    assert not (folder / "data.zip").exists()


def test_a_complete_download_leaves_one_file(server: Server, tmp_path: Path) -> None:
    target = fetch(server, tmp_path / "new")
    assert target.read_bytes() == CONTENT and os.listdir(target.parent) == ["data.zip"]


def test_a_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    cut(server, tmp_path)
    cut(server, tmp_path, 700_000)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges_requested == [None, "bytes=300000-", "bytes=700000-"]


def test_a_complete_part_is_not_requested_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.zip.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path).read_bytes() == CONTENT and not server.ranges_requested


@pytest.mark.parametrize("change", ["no ranges", "another file", "too long a part"])
def test_a_download_that_cannot_be_resumed_starts_again(server: Server, tmp_path: Path, change: str) -> None:
    cut(server, tmp_path)
    if change == "no ranges":
        server.ranges = False
    elif change == "another file":
        server.content = CONTENT[::-1]
    else:
        (tmp_path / "data.zip.part").write_bytes(bytes(len(CONTENT) + 1))
    with pytest.raises(UserError, match="run it again"):
        fetch(server, tmp_path)
    assert not (tmp_path / "data.zip.part").exists()  # else the next call would end so, too
    assert fetch(server, tmp_path).read_bytes() == server.content


def test_a_wrong_file_keeps_the_old_one(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.zip").write_bytes(b"old")
    with pytest.raises(UserError, match=f"expected the digest 00, got {blob(CONTENT)}"):
        download(tmp_path / "data.zip", server.url, "00")
    assert (tmp_path / "data.zip").read_bytes() == b"old" and os.listdir(tmp_path) == ["data.zip"]


def test_a_redirect_is_followed(server: Server, tmp_path: Path) -> None:
    moved = server.url.replace("data.zip", "moved.zip")
    assert download(tmp_path / "d.zip", moved, blob(CONTENT)).read_bytes() == CONTENT


def test_errors_are_one_line(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="returned error: 404"):
        download(tmp_path / "d.zip", server.url + "x", "00")
    (tmp_path / "full.zip.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"(?i)writ\w+ (output|body|received|file)"):
        download(tmp_path / "full.zip", server.url, "00")
    monkeypatch.setattr(module, "MAX_DOWNLOAD", 1000)
    with pytest.raises(UserError, match="Maximum file size exceeded"):
        fetch(server, tmp_path)
    server.server_close()
    with pytest.raises(UserError, match=r"(?i)connect"):
        download(tmp_path / "d.zip", server.url.replace(str(server.server_port), "9"), "00")
    monkeypatch.setattr(module, "CURL", ("no-such-curl",))
    with pytest.raises(UserError, match="curl is not installed: install it, or fetch"):
        fetch(server, tmp_path)
