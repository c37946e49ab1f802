"""What is in an archive: read whole, measured, set against the published edition."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.data.archive import AUTHORS_MAX_PIXELS, AUTHORS_MAX_TOKENS, EDITIONS, Archive
from models import Vocabulary

BUCKETS = ("(0,10]", "(10,20]", "(20,30]", "(30,40]", "(40,50]", "50+")
_EDGES = (1, 11, 21, 31, 41, 51, np.inf)


@dataclass(frozen=True)
class SplitReport:
    """One split measured; sizes are (smallest, median, largest), `ink` the share of lit pixels."""

    n: int
    caption_md5: str
    published: bool | None  # captions and buckets as in the known edition; None: no such split there
    tokens: int
    symbols: int
    buckets: tuple[int, ...]
    height: tuple[int, int, int]
    width: tuple[int, int, int]
    pixels: int
    ink: float
    with_ground_truth: bool
    skipped: dict[str, str] = field(default_factory=dict)  # by the authors' loader: id -> reason


@dataclass(frozen=True)
class Report:
    """An archive measured; prints as a table, `json()` holds everything."""

    path: str
    name: str
    edition: str
    digest: str
    unused_symbols: tuple[str, ...]  # of the vocabulary, in train
    splits: dict[str, SplitReport]

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def __rich__(self) -> RenderableType:
        table = Table(title=f"{self.edition}\ndigest {self.digest[:16]}", title_style="bold", title_justify="left")
        table.add_column("")
        for name in self.splits:
            table.add_column(name, justify="right")
        for heading, measured in _ROWS.items():
            table.add_row(heading, *map(measured, self.splits.values()))
        notes = [
            f"{name}: the authors' loader skips {id_}: {reason}"
            for name, split in self.splits.items()
            for id_, reason in split.skipped.items()
        ]
        notes += [f"{name}: no symLG, so no scores" for name, s in self.splits.items() if not s.with_ground_truth]
        if self.unused_symbols:
            notes.append(f"train never shows {' '.join(self.unused_symbols)}")
        return Group(table, *map(Text, notes))


_ROWS: dict[str, Callable[[SplitReport], str]] = {
    "expressions": lambda split: f"{split.n:,}",
    **{
        f"{bucket} tokens": lambda split, place=place: f"{split.buckets[place]:,}"
        for place, bucket in enumerate(BUCKETS)
    },
    "symbols": lambda split: str(split.symbols),
    "height, px": lambda split: "{}–{}–{}".format(*split.height),
    "width, px": lambda split: "{}–{}–{}".format(*split.width),
    "Mpx in all": lambda split: f"{split.pixels / 1e6:.1f}",
    "ink, %": lambda split: f"{100 * split.ink:.1f}",
    "as published": lambda split: {True: "yes", False: "no", None: "–"}[split.published],
}  # sizes are smallest, median, largest


def length_buckets(lengths: list[int]) -> tuple[int, ...]:
    """Counts by number of tokens, in the paper's buckets (Fig. 3)."""
    return tuple(int(count) for count in np.histogram(lengths, _EDGES)[0])


def skip_reason(height: int, width: int, tokens: int) -> str | None:
    """Why the authors' loader leaves an expression out, if it does."""
    reasons = []
    if height * width > AUTHORS_MAX_PIXELS:
        reasons.append(f"{height} x {width} = {height * width:,} pixels (more than {AUTHORS_MAX_PIXELS:,})")
    if tokens > AUTHORS_MAX_TOKENS:
        reasons.append(f"{tokens} tokens (more than {AUTHORS_MAX_TOKENS})")
    return " and ".join(reasons) or None


def verify(archive: Archive) -> Report:
    """Reads every byte of an archive and measures it. Raises UserError at the first flaw."""
    seen = {token for tokens in archive.captions("train").values() for token in tokens}
    return Report(
        path=str(archive.path),
        name=archive.name,
        edition=archive.edition,
        digest=archive.digest,
        unused_symbols=tuple(symbol for symbol in Vocabulary().words[3:] if symbol not in seen),
        splits={split: _measure(archive, split) for split in archive.splits},
    )


def _measure(archive: Archive, split: str) -> SplitReport:
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
    buckets = length_buckets([len(tokens) for tokens in captions.values()])
    known = next(iter(EDITIONS.values())).get(split)
    md5 = archive.caption_md5(split)
    return SplitReport(
        n=len(captions),
        caption_md5=md5,
        published=None if known is None else (md5, len(captions), buckets) == (known.md5, known.n, known.buckets),
        tokens=sum(map(len, captions.values())),
        symbols=len({token for tokens in captions.values() for token in tokens}),
        buckets=buckets,
        height=_spread(heights),
        width=_spread(widths),
        pixels=pixels,
        ink=round(ink / pixels, 4),
        with_ground_truth=archive.has_ground_truth(split) and bool(archive.ground_truth(split)),
        skipped=skipped,
    )


def _spread(values: np.ndarray) -> tuple[int, int, int]:
    return int(values.min()), int(np.median(values)), int(values.max())


def describe(archive: Archive, as_json: bool = False) -> Report:
    """The verb `data`: verifies an archive and prints what it holds, as a table or as JSON."""
    report = verify(archive)
    if as_json:
        print(report.json())
    else:
        Console().print(report)
    return report
