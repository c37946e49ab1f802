"""The HTTP server under load and with clients that misbehave; what it recognizes with is a stand-in."""

import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from hmerbench.benchmarks.cli.main import app
from hmerbench.benchmarks.data.normalize_image import prepare
from hmerbench.benchmarks.recognition import server as served
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.recognition.server import MAX_BYTES, MAX_PIXELS, RecognitionServer, Refused

SECONDS = 1.0


class StandIn:
    """Prepares pictures as a recognizer does, and notes in which threads."""

    name = "a stand-in"

    def __init__(self) -> None:
        self.threads = set[int]()

    def __call__(self, picture: bytes) -> Any:
        self.threads.add(threading.get_ident())
        if picture == b"bug":
            raise ZeroDivisionError("of a network\nin two lines")
        if picture == b"slow":
            time.sleep(SECONDS / 2)
        shape = prepare(PNG if picture == b"slow" else picture, "image").image.shape
        return SimpleNamespace(to_dict=lambda count: {"latex": "x", "shape": shape, "count": count})


@pytest.fixture
def server() -> Iterator[RecognitionServer]:
    stand_in: Any = StandIn()
    running = RecognitionServer(stand_in, "127.0.0.1", 0, SECONDS)
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


def png() -> bytes:
    paper, file = np.full((90, 160), 255, np.uint8), io.BytesIO()
    paper[20:70, 40:44] = 0
    paper[44:48, 20:90] = 0
    Image.fromarray(paper).save(file, "PNG")
    return file.getvalue()


def black(width: int, height: int) -> bytes:
    """A PNG of few bytes and many pixels."""
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG", compress_level=1)
    return file.getvalue()


PNG = png()


def ask(server: RecognitionServer, method: str = "POST", path: str = "/", body: Any = None, **headers: str) -> tuple:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, json.loads(content)


def raw(server: RecognitionServer, *parts: bytes, pause: float = 0.0) -> bytes:
    """What the server answers to bytes that are sent with pauses, of a client that then sends no more."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
        try:
            for part in parts:
                client.sendall(part)
                time.sleep(pause)
            if not pause:
                client.shutdown(socket.SHUT_WR)
            while part := client.recv(9999):
                answer += part
        except OSError:  # the server has closed the connection
            pass
    return answer


def test_32_clients_at_once_are_answered_by_one_thread(server: RecognitionServer) -> None:
    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(lambda _: ask(server, path="/?nbest=3", body=PNG), range(64)))
    assert [status for status, _ in answers] == [200] * 64
    assert all(answer == {"latex": "x", "shape": answer["shape"], "count": 3} for _, answer in answers)
    assert len(server.recognizer.threads) == 1  # pyright: ignore[reportAttributeAccessIssue]
    limits = {"max_bytes": MAX_BYTES, "max_pixels": MAX_PIXELS}
    assert ask(server, "GET") == (200, {"network": "a stand-in", **limits})


def test_who_waits_too_long_is_told_so(server: RecognitionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "WAIT", SECONDS / 10)
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda _: ask(server, body=b"slow"), range(4)))
    assert sorted(status for status, _ in answers) == [200, 503, 503, 503]  # one that is being read is waited for
    assert all("try again" in answer["error"] for status, answer in answers if status == 503)


def test_who_waits_when_the_server_ends_is_told_so(server: RecognitionServer) -> None:
    read = threading.Event()
    server.worker.submit(read.wait)  # a picture that is being read
    with ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(ask, server, body=PNG) for _ in range(2)]
        while server.worker._work_queue.qsize() < 2:
            time.sleep(0.01)
        server.shutdown()
        server.server_close()
        assert [answer.result() for answer in answers] == [(503, {"error": served.ENDING})] * 2
    with pytest.raises(Refused, match="ending"):  # whose picture came later
        server.recognized(bytearray(PNG))
    read.set()


def test_an_address_of_ipv6_is_told_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recognizer, "load", lambda *_: StandIn())
    monkeypatch.setattr(served, "RecognitionServer", lambda *_: MagicMock(server_port=8000))
    assert CliRunner().invoke(app, ["serve", "--host", "::1"]).stdout.startswith("http://[::1]:8000/ ")


BAD = {
    "text": ({"body": b"not a picture"}, 400, "not an image of a known format"),
    "cut": ({"body": PNG[:80]}, 400, "damaged"),
    "empty": ({"body": b""}, 400, "the body is empty"),
    "form": ({"body": b"--x", "Content-Type": "multipart/form-data; boundary=x"}, 415, "--data-binary @FILE"),
    "large": ({"body": None, "Content-Length": str(MAX_BYTES + 1)}, 413, "10 MB"),
    "huge": ({"body": None, "Content-Length": "9" * 30}, 413, "10 MB"),
    "pixels": ({"body": black(7100, 7100)}, 413, "more than 50 million pixels"),
    "more pixels than anybody reads": ({"body": black(11_000, 11_000)}, 413, "more than 50 million pixels"),
    "negative": ({"body": None, "Content-Length": "-1"}, 411, "Content-Length"),
    "chunked": ({"body": iter([PNG])}, 411, "Content-Length"),
    "elsewhere": ({"path": "/etc/passwd", "body": PNG}, 404, "only /"),
    "no address": ({"method": "GET", "path": "ftp://["}, 404, "only /"),
    "count": ({"path": "/?nbest=many", "body": PNG}, 400, "nbest must be"),
    "count with zeros": ({"path": "/?nbest=000000005000", "body": PNG}, 400, "nbest must be"),
    "method": ({"method": "PUT", "body": b"x"}, 501, "Unsupported method"),
    "bug": ({"body": b"bug"}, 500, "probably a bug"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_told_why(server: RecognitionServer, name: str) -> None:
    request, status, words = BAD[name]
    answer = ask(server, **request)
    assert answer[0] == status and words in answer[1]["error"] and "\n" not in answer[1]["error"]
    assert ask(server, body=PNG)[0] == 200


@pytest.mark.parametrize(("path", "status"), [("/", b"200"), ("/elsewhere", b"404")])
def test_a_probe_gets_the_head_of_the_answer(server: RecognitionServer, path: str, status: bytes) -> None:
    head, _, body = raw(server, f"HEAD {path} HTTP/1.0\r\n\r\n".encode()).partition(b"\r\n\r\n")
    assert status in head.splitlines()[0] and b"application/json" in head and not body


CHUNKED = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_the_answer_reaches_a_client_that_still_sends(server: RecognitionServer) -> None:
    assert b" 411 " in raw(server, CHUNKED, *[b"x" * 999] * 3, pause=SECONDS / 10)


def test_clients_that_are_slow_or_stop_hold_nobody_up(server: RecognitionServer) -> None:
    head = b"POST / HTTP/1.0\r\nContent-Length: 1000\r\n\r\n"
    assert b"400 " in (cut := raw(server, head, b"x" * 10)) and b"cut off: 10 of 1000 bytes came" in cut
    began = time.monotonic()
    with ThreadPoolExecutor(4) as clients:
        clients.submit(raw, server, CHUNKED, *[b"x"] * 30, pause=SECONDS / 10)  # it sends on, though it is refused
        slow_body = clients.submit(raw, server, head, *[b"x"] * 30, pause=SECONDS / 10)
        slow_head = clients.submit(raw, server, *[b"P"] * 30, pause=SECONDS / 10)
        assert ask(server, body=PNG)[0] == 200
        assert time.monotonic() - began < 20 * SECONDS
        assert b" 200 " not in slow_body.result() + slow_head.result()
    while server.free._value < served.CONNECTIONS:  # until all are free again
        assert time.monotonic() - began < 60


def test_more_clients_than_there_is_room_for_are_told_so(server: RecognitionServer, monkeypatch) -> None:
    server.free = threading.BoundedSemaphore(1)
    with socket.create_connection(("127.0.0.1", server.server_port)) as first:
        first.sendall(b"POST / HTTP/1.0\r\n")
        time.sleep(0.2)
        assert b"503 Service Unavailable" in raw(server, b"GET / HTTP/1.0\r\n\r\n")
