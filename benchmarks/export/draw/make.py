"""Writes the page: the network as ONNX, onnxruntime-web from the npm package, and the scripts beside this file, in one
HTML file that works from a disk and from any server, and requests nothing.

The scripts are: latex.js (MathML), ink.js (strokes and pictures to ink) and page.js in the page; latex.js, search.js
and worker.js in its worker, which reads.
"""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.export.onnx_files import write_onnx
from hmerbench.benchmarks.files import compressed, write_atomically
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.models.weights import one_line

HERE = Path(__file__).parent
PACKAGE = "onnxruntime-web@1.30.0"
RUNTIME = {  # its files that the page needs, with their SHA-256
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}


def write_page(recognizer: Recognizer, path: Path, cache: Path) -> None:
    """Write the page of a network, its weights as float16, to `path`; `cache` keeps the files of the npm package.

    Raises UserError for a network that cannot be exported, and where the package cannot be had.
    """
    runtime = fetched(cache)
    with tempfile.TemporaryDirectory() as scratch:
        write_onnx(recognizer.model, recognizer.config, Path(scratch), "float16")
        files = {name: (Path(scratch) / file).read_bytes() for name, file in FILES.items()}
    files |= {"runtime": runtime[0], "wasm": runtime[1]}
    scripts = {name: (HERE / f"{name}.js").read_text() for name in ("latex", "ink", "page", "search", "worker")}
    data = [block(f"data-{name}", compressed(content)) for name, content in files.items()]
    data.append(block("data-worker", "\n".join(scripts[name] for name in ("latex", "search", "worker"))))
    page = (HERE / "page.html").read_text()
    parts = {"CSS": (HERE / "page.css").read_text(), "DATA": "\n".join(data)}
    parts["SCRIPT"] = "\n".join(scripts[name] for name in ("latex", "ink", "page"))
    for name, content in parts.items():
        page = page.replace(f"%{name}%", content)
    write_atomically(path, page)


FILES = {"encoder": "encoder.onnx", "step": "step.onnx", "model": "model.json"}


def block(name: str, text: str) -> str:
    """Data in a page, which no browser runs."""
    return f'<script type="text/plain" id="{name}">{text}</script>'


def fetched(cache: Path) -> list[bytes]:
    """The files of RUNTIME, fetched with npm once and checked."""
    if not all((cache / name).is_file() for name in RUNTIME):
        _fetch(cache)
    contents = [(cache / name).read_bytes() for name in RUNTIME]
    for content, (name, digest) in zip(contents, RUNTIME.items(), strict=True):
        if hashlib.sha256(content).hexdigest() != digest:
            raise UserError(f"{cache / name}: not the file of {PACKAGE}; delete it, and it is fetched again")
    return contents


def _fetch(cache: Path) -> None:
    if not (npm := shutil.which("npm")):
        raise UserError("npm is not here, which fetches onnxruntime-web; install Node.js (apt-get install npm)")
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run([npm, "pack", PACKAGE, "--silent"], cwd=scratch, capture_output=True, text=True)
        packages = [*Path(scratch).glob("*.tgz")]
        if done.returncode or not packages:
            raise UserError(f"npm pack {PACKAGE}: {one_line(done.stderr)}; is there a connection to the npm registry?")
        with tarfile.open(packages[0]) as archive:
            for name in RUNTIME:
                member = archive.extractfile(f"package/dist/{name}")
                assert member is not None
                write_atomically(cache / name, member.read())
