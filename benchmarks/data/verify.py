"""What is in an archive: read whole, measured, compared with the published edition."""

import json
from collections import Counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.data.archive import AUTHORS_MAX_PIXELS, AUTHORS_MAX_TOKENS, EDITIONS, Archive
from evaluation.scoring.lengths import BUCKETS, bucket
from models import Vocabulary


def verify(archive: Archive) -> dict[str, Any]:
    """Reads every byte of an archive and measures it, split by split. Raises UserError at the first flaw."""
    seen = {token for tokens in archive.captions("train").values() for token in tokens}
    return {
        "path": str(archive.path),
        "name": archive.name,
        "edition": archive.edition,
        "digest": archive.digest,
        "unused_symbols": [symbol for symbol in Vocabulary().words[3:] if symbol not in seen],  # in train
        "splits": {split: _measure(archive, split) for split in archive.splits},
    }


def _measure(archive: Archive, split: str) -> dict[str, Any]:
    """Sizes are (smallest, median, largest) in pixels, `ink` the share of lit ones; `published`: captions and buckets
    as in the known edition, None where that has no such split; `skipped` by the authors' loader: id -> reason."""
    captions = archive.captions(split)
    sizes, ink, skipped = [], 0, {}
    for sample in archive.iter_samples(split):
        height, width = sample.image.shape
        sizes.append((height, width))
        ink += int(np.count_nonzero(sample.image))
        if reason := skip_reason(height, width, len(sample.tokens)):
            skipped[sample.id] = reason
    heights, widths = np.array(sizes).T
    pixels = int((heights * widths).sum())
    buckets, md5 = length_buckets([len(tokens) for tokens in captions.values()]), archive.caption_md5(split)
    known = next(iter(EDITIONS.values())).get(split)
    return {
        "n": len(captions),
        "caption_md5": md5,
        "published": known and (md5, len(captions), buckets) == (known.md5, known.n, known.buckets),
        "tokens": sum(map(len, captions.values())),
        "symbols": len({token for tokens in captions.values() for token in tokens}),
        "buckets": buckets,
        "height": [int(measure(heights)) for measure in (np.min, np.median, np.max)],
        "width": [int(measure(widths)) for measure in (np.min, np.median, np.max)],
        "pixels": pixels,
        "ink": round(ink / pixels, 4),
        "with_ground_truth": archive.has_ground_truth(split) and bool(archive.ground_truth(split)),
        "skipped": skipped,
    }


def length_buckets(lengths: list[int]) -> tuple[int, ...]:
    """Counts by number of tokens, in the paper's buckets (Fig. 3)."""
    counts = Counter(map(bucket, lengths))
    return tuple(counts[name] for name in BUCKETS)


def skip_reason(height: int, width: int, tokens: int) -> str | None:
    """Why the authors' loader leaves an expression out, if it does."""
    reasons = []
    if height * width > AUTHORS_MAX_PIXELS:
        reasons.append(f"{height} x {width} = {height * width:,} pixels (more than {AUTHORS_MAX_PIXELS:,})")
    if tokens > AUTHORS_MAX_TOKENS:
        reasons.append(f"{tokens} tokens (more than {AUTHORS_MAX_TOKENS})")
    return " and ".join(reasons) or None


def describe(archive: Archive, as_json: bool = False) -> dict[str, Any]:
    """The verb `data`: verifies an archive and prints what it holds, as a table or as JSON."""
    found = verify(archive)
    if as_json:
        print(json.dumps(found, indent=2))
        return found
    table = Table(title=f"{found['edition']}\ndigest {found['digest'][:16]}", title_style="bold", title_justify="left")
    table.add_column("")
    rows: dict[str, list[str]] = {}
    for name, split in found["splits"].items():
        table.add_column(name, justify="right")
        cells = {"expressions": f"{split['n']:,}"}
        cells |= {f"{b} tokens": f"{count:,}" for b, count in zip(BUCKETS, split["buckets"], strict=True)}
        cells |= {"symbols": str(split["symbols"])}
        cells |= {f"{side}, px": "–".join(map(str, split[side])) for side in ("height", "width")}
        cells |= {"Mpx in all": f"{split['pixels'] / 1e6:.1f}", "ink, %": f"{100 * split['ink']:.1f}"}
        cells |= {"as published": {True: "yes", False: "no", None: "–"}[split["published"]]}
        for heading, cell in cells.items():
            rows.setdefault(heading, []).append(cell)
    for heading, row in rows.items():
        table.add_row(heading, *row)
    console = Console()
    console.print(table)
    for name, split in found["splits"].items():
        for id_, reason in split["skipped"].items():
            console.print(f"{name}: the authors' loader skips {id_}: {reason}", markup=False, highlight=False)
        if not split["with_ground_truth"]:
            console.print(f"{name}: no symLG, so no scores")
    if unused := " ".join(found["unused_symbols"]):
        console.print(f"train never shows {unused}", markup=False, highlight=False)
    return found
