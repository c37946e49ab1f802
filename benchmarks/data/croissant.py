"""The passport of an archive as Croissant metadata (MLCommons, version 1.1), which data set searches and loaders read.

What is published of a set comes from its file in benchmarks/datasets/; of one's own data, only what the archive shows.
"""

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import mlcroissant as ml

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically

CONFORMS_TO = ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]


def check(archive: Path, target: Path) -> None:
    """Raise UserError for an archive that is no file, so has no digest, and for a target that cannot be written."""
    if not archive.is_file():
        raise UserError(f"{archive}: Croissant describes one file; zip the folder")
    if target.is_dir() or not target.parent.is_dir():
        raise UserError(f"{target}: must be a file in a folder that is there")


def write(report: dict[str, Any], archive: Path, target: Path) -> str:
    """Write the metadata of an archive, a zip, from its passport, and return a sentence on that. Raises UserError for
    what mlcroissant refuses."""
    try:
        content = json.dumps(metadata(report, archive).to_json(), indent=2, ensure_ascii=False)
        write_atomically(target, content + "\n")
        ml.Dataset(jsonld=str(target))
    except ml.ValidationError as error:
        raise UserError(f"{target}: mlcroissant refuses it ({' '.join(str(error).split())[:300]})") from None
    return f"{target}: valid Croissant"


def metadata(report: dict[str, Any], path: Path) -> ml.Metadata:
    """What is known of the archive at `path`, its files and their records."""
    like, splits = report["published"], report["splits"]
    known = like if like and like["name"] == report["name"] else {}
    about = known.get("description", "Images of mathematical expressions with LaTeX.")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    made = datetime.fromtimestamp(int(path.stat().st_mtime))
    archive = ml.FileObject(
        id=path.name,
        name=path.name,
        content_url=known.get("url", path.name),
        encoding_formats=["application/zip"],
        sha256=digest,
    )
    return ml.Metadata(
        name=known.get("name", path.stem),
        description=f"{report['edition']}. {about}",
        conforms_to=CONFORMS_TO,
        url=known.get("url", path.name),
        license=[known.get("license_url") or known.get("license", "not stated")],
        creators=[ml.Person(name=name) for name in known.get("creators", ["not stated"])],
        date_published=datetime.fromisoformat(known["published"]) if known.get("published") else made,
        cite_as=known.get("cite", "not stated"),
        version="1.0.0",
        data_limitations=[f"{report['vocabulary']} symbols", *_limitations(splits)],
        data_biases=[*_biases(splits)],
        distribution=[archive, *(part for name, split in splits.items() for part in _files(name, split, path.name))],
        record_sets=[record for split in splits for record in _records(split)],
    )


def _files(name: str, split: dict[str, Any], archive: str) -> list[ml.FileSet]:
    """The files that a split has, of each kind by their names and in the formats that they have."""
    formats = split["formats"]
    kinds = {
        "images": ([f"img/*{ending}" for ending in formats], sorted({each for of in formats.values() for each in of})),
        "captions": (["caption.txt"], ["text/plain"]),
    }
    if split["with_ground_truth"]:
        kinds["symlg"] = ["symLg/*.lg"], ["text/plain"]
    return [
        ml.FileSet(
            id=f"{name}-{kind}",
            name=f"{name}-{kind}",
            contained_in=[archive],
            encoding_formats=encodings,
            includes=[f"data/{name}/{pattern}" for pattern in patterns],
        )
        for kind, (patterns, encodings) in kinds.items()
    ]


def _records(split: str) -> list[ml.RecordSet]:
    """The images of a split with the names of their files, and the lines of its captions: an id, a tab, tokens."""
    records = []
    for kind, fields in (
        ("images", {"image": (ml.DataType.IMAGE_OBJECT, "content"), "file": (ml.DataType.TEXT, "filename")}),
        ("captions", {"line": (ml.DataType.TEXT, "lines")}),
    ):
        name, files = f"{split}-{kind}-records", f"{split}-{kind}"
        taken = {field: ml.Extract(file_property=ml.FileProperty[what]) for field, (_, what) in fields.items()}
        made = [
            ml.Field(
                id=f"{name}/{field}",
                name=f"{name}/{field}",
                data_types=[type_],
                source=ml.Source(file_set=files, extract=taken[field]),
            )
            for field, (type_, _) in fields.items()
        ]
        records.append(ml.RecordSet(id=name, name=name, fields=made))
    return records


def _limitations(splits: dict[str, Any]) -> Iterator[str]:
    """What a reader of rates must know of the ground truth."""
    for name, split in splits.items():
        if symlg := split["symlg"]:
            differ, neutral = (len(symlg[key]) for key in ("differ", "differ_without_limits"))
            of = f"{differ} captions of {split['n']} differ from their symLG"
            yield f"{name}: {of}, {neutral} whatever \\limits"


def _biases(splits: dict[str, Any]) -> Iterator[str]:
    """How independent images and splits are."""
    for name, split in splits.items():
        if count := split["writers"]["n"]:
            yield f"{name}: {split['n']} images of {count} writers (by {split['writers']['known by']})"
        if split["captions_in_train"]:
            yield f"{name}: {split['captions_in_train']} captions are also in train"
