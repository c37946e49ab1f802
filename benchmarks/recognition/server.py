"""A small HTTP server that recognizes pictures.

    POST /            a picture as the body (PNG, JPEG, …)   -> 200, JSON as of `Recognition.to_dict`; ?nbest=5
    GET /             -> 200, which network reads; HEAD / without the body

Anything else is answered with a status and {"error": one line}. Requests are read side by side, up to CONNECTIONS at
once; pictures are decoded and recognized one after the other, in one thread. So memory is bounded: CONNECTIONS *
MAX_BYTES for what is sent, PIXEL_BYTES for each of at most MAX_PIXELS decoded pixels, and what the network takes, which
does not grow with the number of pictures (`configure_libraries`).
"""

import json
import socket
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hmerbench.benchmarks.data.normalize_image import pixels_to_decode
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.recognition.recognizer import Recognition, Recognizer
from hmerbench.models.files import one_line

MAX_BYTES = 10_000_000  # of a picture
MAX_PIXELS = 50_000_000  # that are decoded of a picture: of a large JPEG, fewer than it has
CONNECTIONS = 64  # that are read at once; others are told to come again, unless they send more than 64 KB
SECONDS = 20.0  # that a client may take to send its request
WAIT = 120.0  # seconds that a request may wait for its turn
ENDING = "the server is ending; try again"


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """Answers one request of a client."""

    server: "RecognitionServer"
    server_version, sys_version = "hmerbench", ""

    def setup(self) -> None:
        """A client that receives nothing is not waited for; for one that sends nothing, see `_answer`."""
        self.deadline = time.monotonic() + self.server.seconds
        super().setup()
        self.connection.settimeout(2 * self.server.seconds)

    def do_GET(self) -> None:
        try:
            self.query()
        except Refused as refused:
            self.answer(refused.status, {"error": str(refused)})
        else:
            limits = {"max_bytes": MAX_BYTES, "max_pixels": MAX_PIXELS}
            self.answer(200, {"network": self.server.recognizer.name, **limits})

    do_HEAD = do_GET  # without the body, as probes ask

    def do_POST(self) -> None:
        try:
            picture, count = self.picture(), self.count()
            found = self.server.recognized(picture).to_dict(count)
        except Refused as refused:
            self.answer(refused.status, {"error": str(refused)})
        except UserError as error:
            self.answer(400, {"error": str(error)})
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # of a bug: the next request is answered nevertheless
            print(f"error: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
            self.answer(500, {"error": "an unexpected error, probably a bug; the server's log has more"})
        else:
            self.answer(200, found)

    def query(self) -> str:
        """What the address asks, after the only path."""
        with suppress(ValueError):  # of http://[
            if (address := urlsplit(self.path)).path == "/":
                return address.query
        raise Refused(404, f"there is only /, not {self.path[:80]}")

    def count(self) -> int:
        value = parse_qs(self.query()).get("nbest", ["5"])[-1]
        if not (value.isascii() and value.isdecimal() and len(value) <= 3 and 1 <= int(value) <= 100):
            raise Refused(400, f"nbest must be a whole number from 1 to 100, not {value[:40]!r}")
        return int(value)

    def picture(self) -> bytearray:
        """The body, read until the client's time is over."""
        self.query()
        if self.headers.get_content_maintype() == "multipart":
            raise Refused(415, "a form is no picture; send the file itself, as curl --data-binary @FILE does")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise Refused(411, "send the picture as the body of the request, with its Content-Length")
        if len(length) > 12 or int(length) > MAX_BYTES:
            raise Refused(413, f"a picture may have {MAX_BYTES / 1e6:.0f} MB, not {length[:12]} bytes; scale it down")
        picture, came = bytearray(int(length)), 0  # takes no memory before it is filled
        while came < len(picture) and (more := self.rfile.readinto1(memoryview(picture)[came:])):
            came += more
        if came < len(picture) and time.monotonic() >= self.deadline:
            raise Refused(408, f"the picture did not arrive within {self.server.seconds:g} s")
        if came < len(picture):
            raise Refused(400, f"the picture was cut off: {came} of {length} bytes came")
        if not picture:
            raise Refused(400, "the body is empty; send the bytes of a picture")
        return picture

    def answer(self, status: int, content: dict[str, Any]) -> None:
        body = (json.dumps(content) + "\n").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors of the protocol, such as an unknown method, in the same form."""
        self.answer(code, {"error": message or "this is no HTTP request that is answered here"})

    def log_message(self, format: str, *args: Any) -> None:
        """One line for each request that is refused, without control characters."""
        if not str(args[1:2]).startswith("('2"):
            print(f"{self.address_string()}: {repr(format % args)[1:-1]}", file=sys.stderr)


class RecognitionServer(HTTPServer):
    """Each connection has a thread, CONNECTIONS of them at most."""

    request_queue_size = 128

    def __init__(self, recognizer: Recognizer, host: str, port: int, seconds: float = SECONDS) -> None:
        self.recognizer, self.seconds = recognizer, seconds
        self.worker = ThreadPoolExecutor(1)  # what a thread has freed, another one could not use
        self.free = threading.BoundedSemaphore(CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    def recognized(self, picture: bytearray) -> Recognition:
        """What is read of a picture, when its turn has come. Raises Refused, UserError."""
        try:
            turn = self.worker.submit(self._recognized, picture)
        except RuntimeError:  # after `server_close`
            raise Refused(503, ENDING) from None
        try:
            return turn.result(WAIT)
        except CancelledError:
            raise Refused(503, ENDING) from None
        except TimeoutError:
            if turn.cancel():
                raise Refused(503, f"others were read for {WAIT:.0f} s; try again") from None
        return turn.result()

    def _recognized(self, picture: bytearray) -> Recognition:
        content = bytes(picture)
        if pixels_to_decode(content) > MAX_PIXELS:
            raise Refused(413, f"more than {MAX_PIXELS // 10**6} million pixels; scale it down, or send it as a JPEG")
        return self.recognizer(content)

    def server_close(self) -> None:
        """Those who wait for their turn are told that it will not come."""
        self.worker.shutdown(wait=False, cancel_futures=True)
        super().server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or say at once that there are too many."""
        if not self.free.acquire(blocking=False):
            body = b'{"error": "too many clients at once; try again"}\n'
            request.settimeout(0.2)
            with suppress(OSError):
                request.recv(1 << 16)  # closing would take the answer from a client that still sends
                request.sendall(
                    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
                )
            self.shutdown_request(request)
            return
        threading.Thread(target=self._answer, args=(request, client_address), daemon=True).start()

    def _answer(self, request: Any, client_address: Any) -> None:
        end = time.monotonic() + self.seconds

        def stop_listening() -> None:
            with suppress(OSError):  # the client has gone
                request.shutdown(socket.SHUT_RD)

        slow = threading.Timer(self.seconds, stop_listening)  # of sending its headers, too
        slow.daemon = True
        slow.start()
        try:
            with suppress(OSError):  # the client has gone
                self.finish_request(request, client_address)
                request.shutdown(socket.SHUT_WR)
                while time.monotonic() < end and request.recv(1 << 16):
                    pass  # closing would take the answer from a client that still sends
        finally:
            slow.cancel()
            self.shutdown_request(request)
            self.free.release()
