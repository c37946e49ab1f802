"""CROHME imported from its pen strokes, beside the set as published: captions, and what weights read of the images.

One rule for captions, that empty scripts go, was written after those of a test year had been seen to differ, and makes
four of them equal; no reading was looked at for it. Of captions, ids alone are written: the set may not be passed on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.data.importing.source import Choice
from hmerbench.benchmarks.data.importing.write import import_data
from hmerbench.benchmarks.data.samples import at_random
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.performance.calibration import read
from hmerbench.benchmarks.printing import console
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.report.documents import from_template, write_texts
from hmerbench.benchmarks.strict_files import read_plain
from hmerbench.evaluation import csv_text
from hmerbench.evaluation.datasets import TRAIN, crohme
from hmerbench.evaluation.scoring.stats import mcnemar

SEED = 7  # of the sample
READ = ("images", "published", "drawn", "only_published", "only_drawn")  # counts of images that were read
Row = dict[str, Any]


@dataclass(frozen=True)
class Compared:
    """The captions of a split that was imported: how many are the published ones, which are not, by id, and which
    expressions were left out, by reason."""

    split: str
    n: int
    differ: Mapping[str, tuple[str, str]]  # id -> as published, as imported
    left_out: Mapping[str, Sequence[str]]

    def row(self) -> Row:
        differ, left_out = len(self.differ), sum(map(len, self.left_out.values()))
        equal = self.n - differ - left_out
        return {"set": self.split, "n": self.n, "equal": equal, "differ": differ, "left_out": left_out}


def compared(archive: Archive, imported: Archive, listing: Path, split: str) -> Compared:
    """A split that was imported beside the published one; `listing` is what `import-data` wrote of it."""
    published, found = archive.captions(split), imported.captions(split)
    reasons = {Path(row["left_out"]).stem: row["reason"] for row in read_plain(listing) if "left_out" in row}
    differ, left_out = dict[str, tuple[str, str]](), dict[str, list[str]]()
    for id_, tokens in published.items():
        if id_ not in found:
            left_out.setdefault(reasons.get(id_, "no InkML"), []).append(id_)
        elif found[id_] != tokens:
            differ[id_] = " ".join(tokens), " ".join(found[id_])
    return Compared(split, len(published), differ, left_out)


def both_read(recognizer: Recognizer, archive: Archive, imported: Archive, split: str, sample: int) -> Row:
    """How many of a fixed sample of images are read right as published and as drawn here, and how many only once."""
    ids = at_random(archive.captions(split).keys() & imported.captions(split).keys(), sample, SEED)
    truth, right = archive.truth_of(split, ids), list[set[str]]()
    for source in (archive, imported):
        images = {id_: source.image(split, id_) for id_ in ids}
        rows = read(recognizer, recognizer.name, split, images, truth)
        right.append({row["id"] for row in rows if row["right"]})
    published, drawn = right
    counts = len(ids), len(published), len(drawn), len(published - drawn), len(drawn - published)
    return dict(zip(READ, counts, strict=True))


def from_ink(crohme: Path, weights: Path, sample: int, results: Path) -> list[Path]:
    """Import every split of CROHME whose InkML is beside the archive, compare, and write results/ink.csv and ink.md.

    Raises UserError for an archive that is not CROHME, and without InkML.
    """
    archive = open_archive(crohme)
    inks = {split: crohme.parent / f"inkml/{split}.zip" for split in archive.splits}
    if archive.name != "crohme":
        raise UserError(f"{crohme}: not CROHME as published; give CoMER's data.zip")
    if lacking := [str(path) for path in inks.values() if not path.is_file()]:
        raise UserError(f"{', '.join(lacking)}: no such file; put zips of CROHME's InkML there, one a split")
    recognizer, rows, splits = Recognizer.load(weights), list[Row](), list[Compared]()
    with TemporaryDirectory() as folder:
        for split, ink in inks.items():
            target = Path(folder) / f"{split}.zip"
            import_data(ink, target, Choice(split), "add")
            imported = open_archive(target, trains=False)
            splits.append(found := compared(archive, imported, target.with_suffix(".import.jsonl"), split))
            for id_, (published, drawn) in found.differ.items():
                console.print(f"{split}/{id_}\n  published: {published}\n  imported:  {drawn}", markup=False)
            tests = split != TRAIN and sample
            rows.append(found.row() | (both_read(recognizer, archive, imported, split, sample) if tests else {}))
    texts = {"ink.csv": csv_text([*rows[-1]], rows), "ink.md": page(rows, splits, recognizer.name)}
    return write_texts({results / name: text for name, text in texts.items()})


def page(rows: Sequence[Row], splits: Sequence[Compared], network: str) -> str:
    """The document: a row for each set and one for all images that were read, and the ids of what differs."""
    total = {key: sum(row.get(key, 0) for row in rows) for key in READ}
    p = mcnemar(total["only_drawn"], total["only_published"])
    told = {"rows": rows, "splits": splits, "network": network, "seed": SEED, "total": total, "p": p}
    return from_template("ink.md", year=crohme().primary, **told)
