"""Two scored runs on a small archive, the first with weights, and their report page."""

import json
from pathlib import Path

import cv2
import numpy as np

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.report.page.make import report
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.workspace import workspace
from hmerbench.benchmarks.score import score
from hmerbench.evaluation import symlg
from hmerbench.evaluation.scoring.inputs import tsv
from hmerbench.models.network import build
from hmerbench.models.weights import pack_weights
from tests.helpers.made_up import put_environment, put_history
from tests.helpers.tiny import SETTINGS

HOSTILE = "x </script><script>window.hacked=1</script> <img src=x onerror=window.hacked=1> &amp; ' \" ]]> <!--"

LIMITS = r"\sum \limits _ { i = 1 } ^ { n } i"

# id: truth, prediction of run A, prediction of run B (None: none)
EXPRESSIONS: dict[str, tuple[str, str | None, str | None]] = {
    "moved": ("x ^ { 2 } + 1", "x 2 + 1", "x ^ { 2 } + 1"),
    "label": ("a + b", "a + c", "a + c"),
    "fraction": (r"\frac { a } { b }", r"\frac { a } { b }", r"\frac { a } { d }"),
    "root": (r"\sqrt [ 3 ] { x }", r"\sqrt { x }", r"\sqrt [ 3 ] { x }"),
    "limits": (LIMITS, r"\sum _ { i = 1 } ^ { n } i", LIMITS),
    "nested": ("x _ { a _ { b } }", "x _ { a _ { b } }", "x _ { a b }"),
    "unclosed": ("y = z", "y = {", "y = z"),
    "nothing": ("1 + 1", None, "1 + 1"),
    "hostile": ("a b", "a b", HOSTILE),
    "long": ("1 + 2 + 3 + 4 + 5 + 6", "1 + 2 + 3 + 4 + 5 + 6", "1 + 2 + 3 + 4 + 5 + 6"),
}
FILLERS = 50  # correct in both runs
N = len(EXPRESSIONS) + FILLERS


def make_archive(folder: Path) -> Path:
    truths = {id_: row[0] for id_, row in EXPRESSIONS.items()} | {f"filler{k}": "1 2" for k in range(FILLERS)}
    for split, captions in {"train": {"t": "x"}, "test": truths}.items():
        (folder / "data" / split / "img").mkdir(parents=True)
        (folder / "data" / split / "symLg").mkdir()
        for number, (id_, latex) in enumerate(captions.items()):
            image = np.zeros((32, 24 + 12 * len(latex.split())), np.uint8)
            cv2.putText(image, str(number), (4, 24), cv2.FONT_HERSHEY_SIMPLEX, 0.6, 255)
            cv2.imwrite(str(folder / f"data/{split}/img/{id_}.bmp"), image)
            (folder / f"data/{split}/symLg/{id_}.lg").write_text(symlg.lg_text(symlg.from_latex(latex), id_))
        lines = "".join(f"{id_}\t{latex}\n" for id_, latex in captions.items())
        (folder / f"data/{split}/caption.txt").write_text(lines)
    return folder


def make_run(results: Path, archive: Archive, recipe: str, side: int) -> tuple[Config, Path]:
    preset = results / "tiny.yaml"
    preset.write_text(json.dumps(SETTINGS | {"select": "heldout"}))
    config = resolve(recipe, str(preset), 7, archive)
    folder = workspace(archive, results) / "runs" / config.run_name
    (folder / "predictions").mkdir(parents=True)
    (folder / "config.yaml").write_text(config.to_yaml())
    put_environment(folder, device="a <b>machine</b>", threads=2, versions={"torch": "2"})
    put_history(folder, [{"seconds": 90.0, "images_per_s": 5.5}, {"seconds": 60.0, "images_per_s": 5.5}])
    read = {id_: row[side] for id_, row in EXPRESSIONS.items()} | {f"filler{k}": "1 2" for k in range(FILLERS)}
    tokens = {id_: latex.split(" ") for id_, latex in read.items() if latex is not None}
    (folder / "predictions/test.tsv").write_text(tsv(tokens))
    score(RunFolder(folder, config), archive, ["test"])
    return config, folder


class Place:
    """An archive, a results folder with two scored runs, the first with weights, and their report page."""

    def __init__(self, root: Path):
        self.results = root / "results"
        self.results.mkdir()
        self.crohme = make_archive(root / "archive")
        self.archive = open_archive(self.crohme)
        (config, self.a), (_, self.b) = (
            make_run(self.results, self.archive, recipe, side) for recipe, side in (("bttr", 1), ("comer-fusion", 2))
        )
        (self.a / "best.safetensors").write_bytes(pack_weights(build(config.model)))
        self.runs = RunFolder.under(self.a.parents[1])
        self.page = report(self.crohme, self.results, attention=3)
        self.set = "foreign-test"
        self.key_a, self.key_b = (f"local/{f.parent.name}/{f.name}" for f in (self.a, self.b))


def errors_of(folder: Path) -> dict[str, int]:
    return {id_: verdict.errors for id_, verdict in RunFolder(folder).expressions("test").items()}
