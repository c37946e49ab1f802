"""The passport of an archive as Croissant metadata (MLCommons, version 1.1), which data set searches and loaders read.

What is published of a set comes from its file in benchmarks/datasets/; of one's own data, only what the archive shows.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import sha256, write_atomically

CONFORMS_TO = ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]
TERMS = (  # of Croissant's vocabulary, whose names stand without its prefix
    "citeAs column containedIn equivalentProperty extract field fileObject fileProperty fileSet format includes "
    "isLiveDataset jsonPath key md5 parentField path recordSet regex references repeated replace samplingRate "
    "separator source subField transform"
)
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in TERMS.split()},
}


def check(archive: Path, target: Path) -> None:
    """Raise UserError for an archive that is no file, so has no digest, and for a target that cannot be written."""
    if not archive.is_file():
        raise UserError(f"{archive}: Croissant describes one file; zip the folder")
    if target.is_dir() or not target.parent.is_dir():
        raise UserError(f"{target}: must be a file in a folder that is there")
    if target.suffix != ".json" or (target.exists() and target.samefile(archive)):
        raise UserError(f"{target}: must end with .json, and not be the archive, which it would replace")


def croissant(report: dict[str, Any], path: Path) -> dict[str, Any]:
    """The metadata of the archive at `path`, a zip, from its passport."""
    like = report["published"]
    known = like if like and like["name"] == report["name"] else {}
    described = f"{report['edition']}. {known.get('description', 'Images of mathematical expressions with LaTeX.')}"
    file = {"contentUrl": known.get("url", path.name), "encodingFormat": "application/zip", "sha256": sha256(path)}
    archive = _node("FileObject", path.name, file)
    sets = [part for name, split in report["splits"].items() for part in _files(name, split, path.name)]
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": known.get("name", path.stem),
        "description": described,
        "url": known.get("url", path.name),
        "license": known.get("license_url") or known.get("license", "not stated"),
        "creator": [{"@type": "sc:Person", "name": name} for name in known.get("creators", ["not stated"])],
        "datePublished": known.get("published") or f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d}",
        "citeAs": known.get("cite", "not stated"),
        "version": "1.0.0",
        "rai:dataLimitations": _limitations(report),
        "rai:dataBiases": _biases(report),
        "distribution": [archive, *sets],
        "recordSet": [record for split in report["splits"] for record in _records(split)],
    }


def _node(kind: str, name: str, keys: dict[str, Any]) -> dict[str, Any]:
    return {"@type": f"cr:{kind}", "@id": name, "name": name, **keys}


def _files(name: str, split: dict[str, Any], archive: str) -> list[dict[str, Any]]:
    """The files that a split has, of each kind by their names and in the formats that they have."""
    formats = split["formats"]
    kinds = {
        "images": ([f"img/*{ending}" for ending in formats], sorted({each for of in formats.values() for each in of})),
        "captions": (["caption.txt"], ["text/plain"]),
    }
    if split["with_ground_truth"]:
        kinds["symlg"] = ["symLg/*.lg"], ["text/plain"]
    sets = []
    for kind, (patterns, encodings) in kinds.items():
        includes = [f"data/{name}/{pattern}" for pattern in patterns]
        keys = {"containedIn": {"@id": archive}, "encodingFormat": encodings, "includes": includes}
        sets.append(_node("FileSet", f"{name}-{kind}", keys))
    return sets


def _records(split: str) -> list[dict[str, Any]]:
    """The images of a split with the names of their files, and the lines of its captions: an id, a tab, tokens."""
    fields = {
        "images": [("image", "sc:ImageObject", "content"), ("file", "sc:Text", "filename")],
        "captions": [("line", "sc:Text", "lines")],
    }
    sets = []
    for kind, of_kind in fields.items():
        name, nodes = f"{split}-{kind}-records", []
        for field, type_, part in of_kind:
            source = {"fileSet": {"@id": f"{split}-{kind}"}, "extract": {"fileProperty": part}}
            nodes.append(_node("Field", f"{name}/{field}", {"dataType": type_, "source": source}))
        sets.append(_node("RecordSet", name, {"field": nodes}))
    return sets


def _limitations(report: dict[str, Any]) -> list[str]:
    """What a reader of rates must know of the ground truth."""
    said = [f"{report['vocabulary']} symbols"]
    for name, split in report["splits"].items():
        if symlg := split["symlg"]:
            differ, neutral = (len(symlg[key]) for key in ("differ", "differ_without_limits"))
            said.append(
                f"{name}: {differ} captions of {split['n']} differ from their symLG, {neutral} whatever \\limits"
            )
    return said


def _biases(report: dict[str, Any]) -> list[str]:
    """How independent images and splits are."""
    said = []
    for name, split in report["splits"].items():
        if (writers := split["writers"])["n"]:
            said.append(f"{name}: {split['n']} images of {writers['n']} writers (by {writers['known by']})")
        if split["captions_in_train"]:
            said.append(f"{name}: {split['captions_in_train']} captions are also in train")
    return said


def write(report: dict[str, Any], archive: Path, target: Path) -> str:
    """Write the metadata and, where mlcroissant is installed, check them by it. Return a sentence on that. Raises
    UserError for what it refuses."""
    write_atomically(target, json.dumps(croissant(report, archive), indent=2, ensure_ascii=False) + "\n")
    try:
        import mlcroissant
    except ImportError:
        return f"{target}: not validated, which needs pip install 'hmerbench[croissant]'"
    try:
        mlcroissant.Dataset(jsonld=str(target))
    except mlcroissant.ValidationError as error:
        raise UserError(f"{target}: mlcroissant refuses it ({' '.join(str(error).split())[:300]})") from None
    return f"{target}: valid Croissant"
