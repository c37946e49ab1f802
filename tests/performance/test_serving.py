"""What is committed of the server under load."""

from hmerbench.benchmarks.data.normalize_image import PIXEL_BYTES
from hmerbench.benchmarks.recognition.server import CONNECTIONS, MAX_BYTES, MAX_PIXELS
from tests.helpers.paths import ROOT

SERVING = (ROOT / "results/serving.md").read_text()
GIGABYTES = (CONNECTIONS * MAX_BYTES + MAX_PIXELS * PIXEL_BYTES) / 1e9


def test_memory_kept_within_its_bound_and_did_not_grow() -> None:
    lines = [line.split("|") for line in SERVING.splitlines() if " × " in line]
    _, many, *_, large, _, again = [[float(cell) for cell in cells[-3:-1]] for cells in lines]
    assert f"together {GIGABYTES:.1f} GB; a larger picture is refused" in SERVING
    assert large[1] < many[0] + 1000 * GIGABYTES  # megabytes: at most so far, after what the network takes
    assert max(many[0], again[0]) < 500  # half a gigabyte, as FOR_COMMAND says, after hundreds of pictures more, too
