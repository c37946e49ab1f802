"""Reads predictions and ground truth from files.

Predictions may be in one file: JSON lines, a JSON list, or a table with a header line (.csv, .tsv). A row has an id
(`id`, `img_id` or `image`, the name of an image file) and a prediction in one of the columns TEXTS: a text, or in JSON
a list of tokens. Two of these are refused, as one may be the truth; anything else in it is ignored, such as the n-best
of `recognize --json`. A JSON mapping has the image or id before each prediction.
"""

import csv
import hashlib
import io
import os
import re
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hmerbench.evaluation import InputError, lines, readable
from hmerbench.evaluation.datasets import symlg_published
from hmerbench.evaluation.lgeval import label_graph
from hmerbench.evaluation.lgeval.results_folder import unconverted
from hmerbench.evaluation.scoring import wrappers
from hmerbench.evaluation.scoring.wrappers import Predictions
from hmerbench.evaluation.stores import ENDINGS, MAX_CAPTIONS, FolderStore, Store, ZipStore, read_text
from hmerbench.evaluation.strict import json_entries, json_lines, rows_of
from hmerbench.evaluation.symlg import PAPER, UNREADABLE, Rules, Unconverted, from_latex, lg_text
from hmerbench.evaluation.symlg.formula import formula_of, prediction_file, tokenize

MAX_FILES = 200_000

LISTS = (".jsonl", ".json", ".csv", ".tsv")
IDS = ("id", "img_id", "image")
TEXTS = ("tokens", "pred", "prediction", "predict", "hypothesis", "latex")
NEEDED = f"id (or {', '.join(IDS[1:])}) and tokens (or {', '.join(TEXTS[1:])})"

_MAPPING = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{')  # of ids to rows
_ID = re.compile(r'[^./\\,"][^/\\,"]*')


class GroundTruth(NamedTuple):
    """symLG text by id, and caption tokens by id where the source has captions."""

    symlg: dict[str, str]
    captions: dict[str, list[str]] | None
    made: bool = False  # the symLG was made from the captions

    def graphs(self) -> dict[str, label_graph.LabelGraph]:
        """The parsed symLGs by id. Raises InputError for a malformed one."""
        return {key: label_graph.read(text, f"{key}.lg") for key, text in self.symlg.items()}


def read_predictions(path: Path, raw: bool = False) -> Predictions:
    """id -> text of the CROHME prediction file (`%ID`, newline, `$tokens$`), without known wrappers.

    `path`: folder of ID.txt, zip of them (the authors' result.zip), or one file of LISTS. `raw`: the LaTeX is not in
    tokens yet, and is split into them. Raises InputError.
    """
    what, listed = "predictions (ID.txt)", False
    if path.is_dir():
        if (tables := sorted(path.glob("predictions/*.tsv"))) and not any(path.glob("*.txt")):
            raise InputError(f"{path}: this is a run folder: give its predictions/{tables[0].name}")
        if any(path.glob("*.lg")) and not any(path.glob("*.txt")):
            raise InputError(f"{path}: holds label graphs (.lg); compare these with hmerbench lgeval evaluate")
        entries = FolderStore(path, root="", depth=0).texts(".txt")
    elif not path.is_file():
        raise InputError(f"{path}: there is no such file or folder of predictions")
    elif path.suffix == ".zip" or zipfile.is_zipfile(path):
        entries = ZipStore(path, root="").texts(".txt")
    elif path.suffix in LISTS:
        entries, what, listed = _listed(path), "predictions", True
    else:
        raise InputError(f"{path}: predictions must be a folder of ID.txt, a zip of them, or one of {', '.join(LISTS)}")
    return _predictions(_unique(entries, path, what).items(), listed, raw)


def _predictions(entries: Iterable[tuple[str, str]], listed: bool, raw: bool) -> Predictions:
    predictions = Predictions()
    for key, text in entries:
        wrappers.read(predictions, key, text, listed)
        if raw:
            predictions[key] = as_tokens(key, predictions[key])
    return predictions


def as_tokens(key: str, text: str) -> str:
    """A prediction file's text with its LaTeX split into tokens; one without a formula stays as it is."""
    latex = wrappers.without_comments(formula_of(text))
    return prediction_file(key, tokenize(latex)) if latex else text


def _listed(path: Path) -> Iterator[tuple[str, str]]:
    """The id and the LaTeX of every row. Raises InputError with the line or entry that is wrong."""
    with readable(path), path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix in (".csv", ".tsv"):
            for where, row in rows_of(file, path, "\t" if path.suffix == ".tsv" else ",", (IDS, TEXTS), NEEDED):
                yield _prediction(row, where)
        elif path.suffix == ".json" and not _is_lines(file):
            for where, key, row in json_entries(file, path, f"must be a JSON list of objects with {NEEDED}"):
                named = {"image": key} | (row if isinstance(row, dict) else {"pred": row})
                yield _prediction(row if key is None else named, where)
        else:
            for where, row in json_lines(file, path, f"not a JSON object with {NEEDED}"):
                yield _prediction(row, where)


def _is_lines(file: io.TextIOBase) -> bool:
    """Whether a .json holds JSON lines by another name: several objects, or one with the keys of a row."""
    first = file.read(1 << 20).lstrip()
    file.seek(0)
    line, _, rest = first.partition("\n")
    a_row = any(f'"{name}"' in line for name in IDS) and not _MAPPING.match(line)
    return first[:1] == "{" and (rest.lstrip()[:1] == "{" or a_row)


def _prediction(row: object, where: str) -> tuple[str, str]:
    names = row if isinstance(row, Mapping) else {}
    id_, text = (next((name for name in known if name in names), None) for known in (IDS, TEXTS))
    if id_ is None or text is None:
        raise InputError(f"{where}: not a JSON object with {NEEDED}")
    if other := next((name for name in TEXTS if name in names and name != text), None):
        raise InputError(f"{where}: has {text} and {other}; keep the one that holds the predictions")
    key, latex = names[id_], names[text]
    try:
        latex = " ".join(latex) if isinstance(latex, list) else latex
        latex.encode()  # JSON may hold lone surrogates ("\ud800"), which no file can
    except (AttributeError, TypeError, UnicodeEncodeError):
        latex = None
    if not isinstance(key, str) or latex is None:
        raise InputError(f"{where}: {id_} must be a string and {text} a text or a list of strings")
    if id_ == "image":
        file = PurePosixPath(key.replace("\\", "/"))
        key = file.stem if file.suffix.lower() in ENDINGS else file.name
    return key, latex


def tsv(predictions: Mapping[str, Sequence[str]]) -> str:
    """Tokens by id as the text of a .tsv with the columns id and tokens, sorted by id."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(("id", "tokens"))
    writer.writerows((id_, " ".join(tokens)) for id_, tokens in sorted(predictions.items()))
    return text.getvalue()


def read_ground_truth(spec: str, rules: Rules = PAPER) -> GroundTruth:
    """`ARCHIVE.zip:SPLIT`, `FOLDER:SPLIT` (with data/SPLIT/caption.txt, symLg/ID.lg), or a folder of .lg.

    Where a split has no symLG, it is made from the captions by `rules`, unless it is one of CROHME's.
    """
    if Path(spec).is_dir():
        graphs = _unique(FolderStore(Path(spec), root="", depth=0).texts(".lg"), spec, ".lg files")
        return GroundTruth(graphs | {key: lg_text(UNREADABLE, key) for key in map(composed, unconverted(spec))}, None)
    store, split = _opened(spec)
    text, made = store.captions(split), not store.has_symlg(split)
    captions = parse_captions(text, f"{spec} caption.txt")
    md5 = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    if made and symlg_published(split, md5):
        raise InputError(f"{spec}: has no symLg/ID.lg; add CROHME's")
    graphs = from_captions(captions, f"{spec} caption.txt", rules) if made else store.texts(".lg", f"{split}/symLg/")
    symlg = _unique(graphs, spec, ".lg files")
    for ids, fault, fix in (
        (captions.keys() - symlg, "symLG", "add their .lg, or drop their captions"),
        (symlg.keys() - captions, "caption", "add their lines to caption.txt, or drop their .lg"),
    ):
        if ids:
            named = ", ".join(sorted(ids)[:3])
            raise InputError(f"{spec}: expressions without a {fault}: {len(ids)} ({named}); {fix}")
    return GroundTruth(symlg, captions, made)


def read_captions(spec: str) -> tuple[str, str]:
    """The text of the captions of `ARCHIVE.zip:SPLIT`, `FOLDER:SPLIT` or a caption.txt, and its name for messages."""
    if Path(spec).is_file():
        return read_text(Path(spec), MAX_CAPTIONS), spec
    store, split = _opened(spec)
    return store.captions(split), f"{spec} caption.txt"


def _opened(spec: str) -> tuple[Store, str]:
    """The archive or folder of `ARCHIVE.zip:SPLIT` or `FOLDER:SPLIT`, and the split."""
    name, _, split = spec.rpartition(":")
    path = Path(name)
    if not name or not split or "/" in split:
        raise InputError(f"{spec}: must be ARCHIVE.zip:SPLIT, FOLDER:SPLIT or a folder of .lg")
    if path.is_dir():
        return FolderStore(path), split
    if not path.is_file():
        raise InputError(f"{path}: there is no such archive or folder of ground truth")
    at = path.stat()
    return _cached_zip(path, (path.absolute(), at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, os.getpid())), split


@lru_cache(maxsize=1)
def _cached_zip(path: Path, _state: object) -> ZipStore:
    """Keep the last archive open: listing the 25,000 files of CROHME's takes a third of a second.

    A forked process opens its own: it would share the position in an open file.
    """
    return ZipStore(path)


def from_captions(captions: dict[str, list[str]], where: str, rules: Rules = PAPER) -> Iterator[tuple[str, str]]:
    """The id and the symLG of every caption. Raises InputError, beginning with `where`, that names those without."""
    reasons: dict[str, Unconverted] = {}
    where += f" ({rules.reading.name})" if rules.reading != PAPER.reading else ""
    for key, tokens in captions.items():
        try:
            yield key, lg_text(from_latex(tokens, rules), key)
        except Unconverted as reason:
            reasons[key] = reason
    if len(reasons) == 1:
        ((key, reason),) = reasons.items()
        raise InputError(f"{where}: {key} does not convert to symLG ({reason}); correct or drop it")
    if reasons:
        named = ", ".join(f"{key} ({reason})" for key, reason in list(reasons.items())[:3])
        named += f" and {len(reasons) - 3} others" if len(reasons) > 3 else ""
        raise InputError(f"{where}: {named} do not convert to symLG; correct or drop them")


def matched(
    predictions: Path | Mapping[str, str], given: str | GroundTruth, raw: bool = False, rules: Rules = PAPER
) -> tuple[Predictions, GroundTruth, int]:
    """The predictions (a file of them, or LaTeX by id) whose id the truth has, the truth, and the number of others.
    Where the truth has no table, an environment around one line is removed as a wrapper. Raises InputError."""
    if isinstance(predictions, Mapping):
        texts = _predictions(_unique(iter(predictions.items()), "predictions", "LaTeX").items(), True, raw)
        predictions = Path("predictions")  # as messages call them
    else:
        texts = read_predictions(predictions, raw)
    truth = read_ground_truth(given, rules) if isinstance(given, str) else given
    known = texts.kept(truth.symlg)
    for key in known:
        if ", *M, " not in truth.symlg[key]:
            wrappers.without_alignment(known, key)
    if not known:
        where = given if isinstance(given, str) else "the ground truth"
        ours, theirs = next(iter(texts)), next(iter(truth.symlg))
        named = (path for path in map(PurePosixPath, texts) if path.stem in truth.symlg)  # as files are
        fix = next((f"drop {path.suffix} from the ids" for path in named), "give their own truth, or its ids")
        raise InputError(
            f"{predictions}: none of its {len(texts)} ids ({ours}, ...) is in {where} ({theirs}, ...); {fix}"
        )
    return known, truth, len(texts) - len(known)


def parse_captions(text: str, name: str) -> dict[str, list[str]]:
    """Caption tokens by id, from `ID<TAB>tokens` lines. Raises InputError for a malformed line or a duplicate id."""
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(lines(text), 1):
        key, tab, tokens = line.partition("\t")
        key = composed(key)
        if not line.strip():
            continue
        if not tab or not key or key in captions:
            fault = f"the id {key} occurs twice; keep one" if key in captions else "must be ID<TAB>tokens; correct it"
            raise InputError(f"{name}, line {number}: {fault}")
        captions[key] = tokens.split()
    return captions


def composed(name: str) -> str:
    """A name as ids are compared: macOS decomposes the accents in names of files."""
    return unicodedata.normalize("NFC", name)


def _unique(entries: Iterator[tuple[str, str]], source: object, what: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, text in entries:
        key = composed(key)
        if key in texts:
            raise InputError(f"{source}: the id {key} occurs twice; keep one")
        if not _ID.fullmatch(key) or not key.isprintable():
            fix = 'rename it: an id is printable, has none of / \\ , " and does not begin with a dot'
            raise InputError(f"{source}: {key!r} cannot be the id of an expression; {fix}")
        texts[key] = text
        if len(texts) > MAX_FILES:
            raise InputError(f"{source}: more than {MAX_FILES} files")
    if not texts:
        raise InputError(f"{source}: holds no {what}")
    return texts
