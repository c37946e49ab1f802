"""What `make regress` sees.

    python -m tests.helpers.planted_faults [--crohme data.zip] [--parts "scores numerics"] [FAULT ...]

Each fault is planted in a copy of the sources, `regress` is run there, and the items that gave it away are printed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers.places import ROOT

# fault: file, what stands there, what is put in its place
FAULTS = {
    "none": ("benchmarks/training/trainer.py", "import gc", "import gc"),
    "coverage shifted by one step": ("models/coverage.py", ".tril(-1)", ".tril(0)"),
    "a wrong relation in symLG": ("evaluation/symlg/builder.py", '"msub": ("Sub",)', '"msub": ("Sup",)'),
    "augmentation off": (
        "benchmarks/data/augmentation.py",
        "draw.uniform(*augmentation.scale) if augmentation and augmentation.scale else 1.0",
        "1.0",
    ),
    "learning rate x10, in the preset": ("benchmarks/presets/smoke.yaml", "lr: 0.003", "lr: 0.03"),
    "learning rate x10, in the program": (
        "benchmarks/training/optimizer.py",
        "rate = peak * 0.5",
        "rate = 10 * peak * 0.5",
    ),
}


def plant(fault: str, folder: Path) -> Path:
    """A copy of the sources and baseline in `folder`, with the fault in it."""
    for name in ("benchmarks", "models", "evaluation", "results/reproduced"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "results/baseline.json", folder / "results")
    path, right, wrong = FAULTS[fault]
    text = (folder / path).read_text()
    if text.count(right) == 0:
        raise SystemExit(f"{path}: holds no {right!r} any more; fix FAULTS")
    (folder / path).write_text(text.replace(right, wrong))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crohme", type=Path)
    parser.add_argument("--parts", default="")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="words of the faults to plant; all where left out")
    options = parser.parse_args()
    print("| fault | exit code | items that differ | by part |\n|---|--:|--:|---|")
    for fault in (name for name in FAULTS if not options.faults or any(word in name for word in options.faults)):
        with tempfile.TemporaryDirectory() as name:
            folder = plant(fault, Path(name))
            made = ROOT / "results/local/embedded/data.zip"
            if made.exists():  # ten seconds saved; no fault is in how it is made
                (folder / "results/local/embedded").mkdir(parents=True)
                shutil.copy(made, folder / "results/local/embedded")
            command = [sys.executable, "-m", "benchmarks", "regress", "--parts", options.parts]
            command += ["--crohme", str(options.crohme.resolve())] if options.crohme else []
            environment = os.environ | {"PYTHONPATH": str(folder)}
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        bad = re.findall(r"^\| (.+?) +\|.*\*\*(?:changed|gone)\*\*", done.stdout, re.MULTILINE)
        count = re.search(r"(\d+) of \d+ items differ", done.stdout)
        parts = {
            "training": [item for item in bad if " training: " in item],
            "numerics": [item for item in bad if re.search(r" (network|batches|first steps): ", item)],
        }
        parts["scores"] = [item for item in bad if not any(item in found for found in parts.values())]
        words = "; ".join(f"{part}: {len(found)} ({found[0]} ...)" for part, found in parts.items() if found)
        print(f"| {fault} | {done.returncode} | {count[1] if count else 0} | {words or '–'} |", flush=True)
        if not count and done.returncode:
            print(done.stderr[-300:])


if __name__ == "__main__":
    main()
