"""Downloading against a local server that can cut, refuse, redirect and swap the file."""

import contextlib
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import download as module
from benchmarks.data.download import download
from benchmarks.errors import UserError

CONTENT = bytes(range(256)) * 4000


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `content` at /data.zip; `cut_at` ends a reply early; `ranges`: can it continue one."""

    content, etag, cut_at, ranges = CONTENT, '"one"', 0, True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

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
        server.asked.append(wanted)
        start = 0
        if wanted and server.ranges and self.headers["If-Range"] in (None, server.etag):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(server.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("ETag", server.etag)
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


def fetch(server: Server, folder: Path, **options: Any) -> Path:
    return download(folder / "data.zip", server.url, **{"git_blob": blob(server.content), **options})


def cut(server: Server, folder: Path, at: int = 300_000) -> None:
    server.cut_at = at
    with pytest.raises(UserError, match=f"cut at {at:,} of {len(CONTENT):,} bytes; run it again"):
        fetch(server, folder)
    server.cut_at = 0
    assert not (folder / "data.zip").exists()


def test_full_download_leaves_the_file_alone(server, tmp_path):
    target = fetch(server, tmp_path / "new", sha256=hashlib.sha256(CONTENT).hexdigest().upper())
    assert target.read_bytes() == CONTENT
    assert os.listdir(target.parent) == ["data.zip"]


def test_cut_connection_is_resumed(server, tmp_path):
    cut(server, tmp_path)
    cut(server, tmp_path, 700_000)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=700000-"]


def test_server_without_ranges_starts_again(server, tmp_path):
    cut(server, tmp_path)
    server.ranges = False
    assert fetch(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("etag", ['"two"', 'W/"two"'])
def test_file_changed_meanwhile_starts_again(server, tmp_path, etag):
    server.etag = etag.replace("two", "one")
    cut(server, tmp_path)
    server.content, server.etag = CONTENT[::-1], etag
    assert fetch(server, tmp_path).read_bytes() == CONTENT[::-1]


def test_part_that_is_too_long_starts_again(server, tmp_path):
    (tmp_path / "data.zip.part").write_bytes(bytes(len(CONTENT) + 1))
    assert fetch(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(("option", "name"), [("git_blob", "git blob"), ("sha256", "sha256")])
def test_wrong_digest_keeps_the_old_file(server, tmp_path, option, name):
    (tmp_path / "data.zip").write_bytes(b"old")
    with pytest.raises(UserError, match=f"{name} [0-9a-f]+ came, 00 is wanted"):
        fetch(server, tmp_path, **{option: "00"})
    assert (tmp_path / "data.zip").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["data.zip"]


def test_redirect_is_followed(server, tmp_path):
    moved = server.url.replace("data.zip", "moved.zip")
    assert download(tmp_path / "d.zip", moved, git_blob=blob(CONTENT)).read_bytes() == CONTENT


def test_what_the_server_refuses_is_told(server, tmp_path):
    with pytest.raises(UserError, match="404 Not Found; give another"):
        download(tmp_path / "d.zip", server.url + "x")
    server.server_close()
    with pytest.raises(UserError, match="refused; run it again"):
        download(tmp_path / "d.zip", server.url.replace(str(server.server_port), "9"), timeout=5)
    with pytest.raises(UserError, match="unknown url type"):
        download(tmp_path / "d.zip", "data.zip")


def test_full_disk_is_told(server, tmp_path):
    (tmp_path / "data.zip.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"data\.zip\.part: No space left on device; make room"):
        fetch(server, tmp_path)


def test_too_large_an_offer_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_BYTES", 1000)
    with pytest.raises(UserError, match="no CROHME archive"):
        fetch(server, tmp_path)
    assert not (tmp_path / "data.zip.part").exists()
