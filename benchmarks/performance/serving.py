"""`hmerbench serve --load`: the server under load, with clients that misbehave, and what memory it takes.

The server is a process of its own that reads pictures of generated expressions. Phases follow each other; in the second
one, slow clients and bad requests come in between. results/serving.md says what was measured.
"""

import http.client
import io
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, cycle, islice
from pathlib import Path

import numpy as np
from PIL import Image

from hmerbench.benchmarks.data.normalize_image import PIXEL_BYTES
from hmerbench.benchmarks.data.synthetic import drawing, expression
from hmerbench.benchmarks.environment import processor
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.recognition.server import CONNECTIONS, MAX_BYTES, MAX_PIXELS
from hmerbench.benchmarks.report.documents import from_template
from hmerbench.benchmarks.runtime import cores

CLIENTS = 32
LARGE, HUGE = (7_000, 7_000), (9_000, 11_000)  # px of pictures: nearly as large as is allowed, and larger
TRICKLE = 0.5  # seconds between two bytes of a slow client
Answer = tuple[str, float]  # status, seconds


@contextmanager
def serving(options: Sequence[str]) -> Iterator[tuple[int, int]]:
    """`hmerbench serve` on a free port: its port and the id of its process."""
    command = [sys.executable, "-m", "hmerbench", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            if not (found := re.search(r"127\.0\.0\.1:(\d+)/", process.stdout.readline())):
                raise UserError("the server did not start; `hmerbench serve` says why")
            yield int(found[1]), process.pid
        finally:
            process.terminate()


def megabytes(process: int, field: str) -> float:
    """Memory of a process: VmRSS now, VmHWM at most so far."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(rf"{field}:\s+(\d+) kB", status)[0]) / 1000


def ask(port: int, body: bytes) -> Answer:
    """Send a picture; the status of the answer and how long it took."""
    began = time.monotonic()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request("POST", "/", body)
        status = str(connection.getresponse().status)
        connection.close()
    except OSError:
        status = "closed"
    return status, time.monotonic() - began


def trickle(port: int, seconds: float) -> str:
    """A client that sends its picture byte by byte; how it ended."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as client:
            client.sendall(b"POST / HTTP/1.0\r\nContent-Length: 5000\r\n\r\n")
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                client.sendall(b"x")
                time.sleep(TRICKLE)
            return "still open"
    except OSError:
        return "cut off"


def png(image: np.ndarray, mode: str = "L") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).convert(mode).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def cross(shape: tuple[int, int]) -> np.ndarray:
    """A plus sign that fills a picture."""
    image, (high, wide) = np.full(shape, 255, np.uint8), shape
    image[high // 2 :][: high // 30, wide // 5 : -wide // 5] = 0
    image[high // 5 : -high // 5, wide // 2 :][:, : wide // 30] = 0
    return image


def bench_server(results: Path, requests: int, options: Sequence[str]) -> str:
    """Measure, and write results/serving.md."""
    draws = (np.random.default_rng((7, number)) for number in range(CLIENTS))
    good = [png(255 - drawing(expression(draw), draw)) for draw in draws]
    bad = [b"no picture", good[0][: len(good[0]) // 2], b"", b"x" * (MAX_BYTES + 1)]
    table = list[list[object]]()

    def phase(name: str, bodies: Sequence[bytes], meanwhile: Callable[[], object] = lambda: None) -> None:
        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS + 1) as clients:
            other = clients.submit(meanwhile)
            answers = [*clients.map(lambda body: ask(port, body), bodies)]
            other.result()
        took, statuses = time.monotonic() - began, Counter(status for status, _ in answers)
        middle, most = np.quantile([seconds for _, seconds in answers], (0.5, 0.95))
        told = ", ".join(f"{n} × {status}" for status, n in sorted(statuses.items()))
        memory = (f"{megabytes(pid, field):.0f}" for field in ("VmRSS", "VmHWM"))
        table.append([name, len(bodies), told, f"{len(bodies) / took:.1f}", f"{middle:.2f}", f"{most:.2f}", *memory])

    with serving(options) as (port, pid):
        phase("one picture, once", good[:1])
        phase(f"{CLIENTS} clients", [good[i % CLIENTS] for i in range(requests)])
        slow = list[str]()

        def slowly() -> None:
            with ThreadPoolExecutor(4) as clients:
                slow.extend(clients.map(lambda _: trickle(port, 40), range(4)))

        pairs = chain.from_iterable(zip(cycle(good), cycle(bad), strict=False))  # so that every kind comes
        mixed = [*islice(pairs, requests)]
        phase(f"{CLIENTS} clients, every other request bad, and 4 slow clients", mixed, slowly)
        phase("transparent pictures of 49 million pixels", [png(cross(LARGE), "RGBA")] * 8)
        phase("pictures of 99 million pixels", [png(cross(HUGE))] * 8)
        phase(f"{CLIENTS} clients again", [good[i % CLIENTS] for i in range(requests)])
    text = from_template(
        "serving.md", requests=requests, command=" ".join(("hmerbench serve", *options)), clients=CLIENTS,
        cores=cores(), cpu=processor(), table=table, cut=slow.count("cut off"), slow=len(slow),
        connections=CONNECTIONS, megabytes=MAX_BYTES / 1e6, pixels=MAX_PIXELS / 1e6, each=PIXEL_BYTES,
        bound=(CONNECTIONS * MAX_BYTES + MAX_PIXELS * PIXEL_BYTES) / 1e9,
    )  # fmt: skip
    write_atomically(results / "serving.md", text)
    return text
