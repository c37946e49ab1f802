"""Verification of an archive: read in full, measured, compared with the published edition."""

import json
from typing import Any

import numpy as np

from hmerbench.benchmarks.config import AUTHORS_MAX_PIXELS, AUTHORS_MAX_TOKENS
from hmerbench.benchmarks.data.archive import Archive, named
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted, show
from hmerbench.evaluation import InputError, lines
from hmerbench.evaluation.lgeval import label_graph
from hmerbench.evaluation.scoring.inputs import PUBLISHED
from hmerbench.evaluation.scoring.lengths import BUCKETS, bucket
from hmerbench.models.vocab import Vocabulary


def verify(archive: Archive) -> dict[str, Any]:
    """Read every byte of an archive and measure each split. Raises UserError for flaws, of images for all at once."""
    training = archive.captions("train").values() if "train" in archive.splits else None
    seen = {token for tokens in training or () for token in tokens}
    splits = {split: _measure(archive, split) for split in archive.splits}
    if faults := [fault for split in archive.unreadable.values() for fault in split]:
        raise UserError(f"{archive.path}: {counted(len(faults), 'image')} cannot be read: {named(faults)}")
    return {
        "path": str(archive.path),
        "name": archive.name,
        "edition": archive.edition,
        "digest": archive.digest,
        "unused_symbols": [word for word in Vocabulary().words[3:] if training and word not in seen],  # in train
        "splits": splits,
    }


def _measure(archive: Archive, split: str) -> dict[str, Any]:
    """Measure a split: `height` and `width` are (smallest, median, largest) in pixels, `ink` the share of ink pixels,
    `buckets` the counts by length (the paper's Fig. 3); `published` says whether captions equal the known edition's
    (None: no such split there); `captions_in_train` counts formulas of a test set that the training set has, too;
    `skipped` maps ids that the authors' loader skips to the reason."""
    captions, md5 = archive.captions(split), archive.caption_md5(split)
    sizes, ink, skipped = [], 0, {}
    for sample in archive.samples(split):
        height, width = sample.image.shape
        sizes.append((height, width))
        ink += int(np.count_nonzero(sample.image))
        if reason := skip_reason(height, width, len(sample.tokens)):
            skipped[sample.id] = reason
    heights, widths = np.array(sizes).T
    pixels = int((heights * widths).sum())
    trained = {tuple(tokens) for tokens in archive.captions("train").values()} if "train" in archive.splits else set()
    in_train = sum(tuple(tokens) in trained for tokens in captions.values()) if split != "train" else None
    lengths = [bucket(len(tokens)) for tokens in captions.values()]
    return {
        "n": len(captions),
        "caption_md5": md5,
        "published": md5 == PUBLISHED[split] if split in PUBLISHED else None,
        "tokens": sum(map(len, captions.values())),
        "symbols": len({token for tokens in captions.values() for token in tokens}),
        "buckets": [lengths.count(name) for name in BUCKETS],
        "height": [int(measure(heights)) for measure in (np.min, np.median, np.max)],
        "width": [int(measure(widths)) for measure in (np.min, np.median, np.max)],
        "pixels": pixels,
        "ink": round(ink / pixels, 4),
        "captions_in_train": in_train,
        "with_ground_truth": archive.has_ground_truth(split) and _read_ground_truth(archive, split) > 0,
        "skipped": skipped,
    }


def _read_ground_truth(archive: Archive, split: str) -> int:
    """Count the label graphs of a split. Raises UserError for a file that holds none (one of 2019 has no symbol)."""
    texts = archive.ground_truth(split)
    for id_, text in texts.items():
        try:
            label_graph.read(text)
            if all(not line.strip() or line.startswith("#") for line in lines(text)):
                raise InputError("empty")
        except InputError as error:
            raise UserError(f"{archive.path}: data/{split}/symLg/{id_}.lg: {error}; restore it") from None
    return len(texts)


def skip_reason(height: int, width: int, tokens: int) -> str | None:
    """Why the authors' loader skips an expression; None if it does not."""
    reasons = []
    if height * width > AUTHORS_MAX_PIXELS:
        reasons.append(f"{width} x {height} = {height * width:,} pixels (more than {AUTHORS_MAX_PIXELS:,})")
    if tokens > AUTHORS_MAX_TOKENS:
        reasons.append(f"{tokens} tokens (more than {AUTHORS_MAX_TOKENS})")
    return " and ".join(reasons) or None


def describe(archive: Archive, as_json: bool) -> None:
    """The command `data`: verify an archive and print its contents, as a table or as JSON."""
    report = verify(archive)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    rows: dict[str, dict[str, object]] = {}
    for name, split in report["splits"].items():
        cells = {"expressions": split["n"]}
        cells |= {f"{length} tokens": count for length, count in zip(BUCKETS, split["buckets"], strict=True)}
        cells |= {"symbols": split["symbols"]}
        cells |= {f"{side}, px": "–".join(map(str, split[side])) for side in ("height", "width")}
        cells |= {"total, Mpx": round(split["pixels"] / 1e6, 1), "ink, %": round(100 * split["ink"], 1)}
        cells |= {"captions in train": "–" if split["captions_in_train"] is None else split["captions_in_train"]}
        cells |= {"as published": {True: "yes", False: "no", None: "–"}[split["published"]]}
        for heading, cell in cells.items():
            rows.setdefault(heading, {"": heading})[name] = cell
    show(f"{report['edition']}\ndigest {report['digest'][:16]}", list(rows.values()))
    for name, split in report["splits"].items():
        for id_, reason in split["skipped"].items():
            print(f"{name}: the authors' loader skips {id_}: {reason}")
        if name != "train" and not split["with_ground_truth"]:
            # CROHME's differs from the captions for a few expressions, so it is not made from them
            told = "so no scores" if split["published"] else "so its ground truth is made from its captions"
            print(f"{name}: no symLG, {told}")
    if unused := " ".join(report["unused_symbols"]):
        print(f"train: no occurrence of {unused}")
