"""The passport of an archive: read in full, measured by split and between splits, compared with what is published.

What a paper should say of its data is here: sizes, lengths, nesting, the convention of limits, how captions and symLG
differ, and what of the test sets was in training: ids, captions, parts of captions, images, writers.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from hmerbench.benchmarks.config import Data
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.layout import named
from hmerbench.benchmarks.data.likeness import fingerprint, near, pixels
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.data.seen import Caption, seen
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted
from hmerbench.benchmarks.resolve import resolve
from hmerbench.evaluation import InputError, lines
from hmerbench.evaluation.datasets import TRAIN, Sizes, sizes_of
from hmerbench.evaluation.lgeval import label_graph
from hmerbench.evaluation.scoring.conventions import COMMANDS, OPERATORS
from hmerbench.evaluation.scoring.metrics import BUCKETS, bucket, nesting
from hmerbench.evaluation.scoring.run_scripts import in_process
from hmerbench.evaluation.scoring.sampling import writer, writers
from hmerbench.evaluation.symlg import rules
from hmerbench.evaluation.symlg.formula import prediction_file
from hmerbench.models.vocab import SPECIAL, Vocabulary

WITH_PARTS = "medium"  # the preset whose generated parts count among the captions of training
Graphs = dict[str, label_graph.LabelGraph]


def passport(archive: Archive) -> dict[str, Any]:
    """Read every byte of an archive and measure it. Raises UserError for flaws, of images for all at once."""
    splits: dict[str, dict[str, Any]] = {}
    images: dict[str, tuple[list[str], list[np.ndarray]]] = {}
    for split in archive.splits:
        samples = archive.samples(split)
        splits[split] = _measure(archive, split, samples)
        images[split] = [pixels(s.image) for s in samples], [fingerprint(s.image) for s in samples]
    if faults := [fault for split in archive.unreadable.values() for fault in split]:
        raise UserError(f"{archive.path}: {counted(len(faults), 'image')} cannot be read: {named(faults)}")
    for split, (digests, _) in images.items():
        splits[split]["equal_images"] = sum(count > 1 for count in Counter(digests).values())
    for name, trained in _trained(archive).items():
        for split in splits:
            found = [tuple(tokens) in trained for tokens in archive.captions(split).values()] if trained else []
            splits[split][name] = sum(found) if trained is not None and split != TRAIN else None
    known, training = archive.like, [*archive.captions(TRAIN).values()] if TRAIN in archive.splits else []
    seen = {token for tokens in training for token in tokens}
    return {
        "path": str(archive.path),
        "name": archive.name,
        "edition": archive.edition,
        "digest": archive.digest,
        "published": known and known.model_dump(mode="json", exclude={"splits", "sheets", "digests"}),
        "vocabulary": len(archive.vocabulary) - len(SPECIAL),
        "other_words": dict(archive.other_words.most_common()),
        "unused_symbols": [word for word in Vocabulary().words[len(SPECIAL) :] if training and word not in seen],
        "splits": splits,
        "between": {
            f"{first}, {second}": _compare(archive, first, second, images) for first, second in combinations(splits, 2)
        },
    }


def _measure(archive: Archive, split: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """Measure a split: `height` and `width` are (smallest, median, largest) in pixels, `ink` the share of ink pixels,
    `formats` those of the image files by the endings of their names, `buckets` the counts by length (the paper's Fig.
    3), `nesting` those by depth; `published` says whether captions equal the known edition's (None: no such split
    there); `skipped` maps ids that the authors' loader skips to the reason. Of a test set, `captions_in_train` counts
    formulas that the training set has, too, and `captions_in_train_or_parts` those that it has as a part, as well (None
    without pen strokes)."""
    captions, known = archive.captions(split), archive.like
    heights, widths = np.array([sample.image.shape for sample in samples]).T
    ink = sum(int(np.count_nonzero(sample.image)) for sample in samples)
    size = int((heights * widths).sum())
    reasons = {s.id: skip_reason(s, sizes_of(known)) for s in samples}
    lengths = Counter(bucket(len(tokens)) for tokens in captions.values())
    depths = Counter(map(nesting, captions.values()))
    has_truth = archive.has_ground_truth(split)
    return {
        "n": len(captions),
        "caption_md5": archive.caption_md5(split),
        "published": archive.as_published(split),
        "tokens": sum(map(len, captions.values())),
        "symbols": len({token for tokens in captions.values() for token in tokens}),
        "buckets": [lengths[name] for name in BUCKETS],
        "nesting": [depths[depth] for depth in range(max(depths) + 1)],
        "height": [int(measure(heights)) for measure in (np.min, np.median, np.max)],
        "width": [int(measure(widths)) for measure in (np.min, np.median, np.max)],
        "pixels": size,
        "ink": round(ink / size, 4),
        "formats": archive.formats(split),
        "limits": _limits_of(captions.values()),
        "writers": _writers(archive, split),
        "published_writers": known.splits[split].writers if known and archive.as_published(split) else None,
        "with_ground_truth": has_truth,
        "symlg": _compare_truth(archive, split) if has_truth else None,
        "skipped": {id_: reason for id_, reason in reasons.items() if reason},
    }


def _limits_of(captions: Any) -> dict[str, int]:
    r"""How the captions write what stands below and above \\sum and the like: with \\limits, or as plain scripts."""
    after = Counter(
        r"\limits" if second == r"\limits" else "script" if second in ("_", "^") else "neither"
        for tokens in captions
        for first, second in zip(tokens, [*tokens[1:], ""], strict=True)
        if first in COMMANDS
    )
    return {key: after[key] for key in (r"\limits", "script", "neither")}


def _compare_truth(archive: Archive, split: str) -> dict[str, Any]:
    """The captions against the symLG that comes with them: ids that differ, as written and if `\\limits` makes no
    difference, and the relations of operators that take limits. Raises UserError for a file that is no graph."""
    graphs = _graphs(archive, split)
    texts = {id_: prediction_file(id_, tokens) for id_, tokens in archive.captions(split).items()}
    differ = {}
    for name, rule in (("differ", rules()), ("differ_without_limits", rules(neutral=True))):
        _, rows, _ = in_process(texts, graphs, rule)
        differ[name] = [id_ for id_, row in rows.items() if row["D_B"]]
    relations = Counter(
        relation
        for graph in graphs.values()
        for (parent, _), labels in graph.edges.items()
        if not graph.nodes[parent].isdisjoint(OPERATORS)
        for relation in labels
    )
    return differ | {"limits": {relation: relations[relation] for relation in ("Below", "Above", "Sub", "Sup")}}


def _graphs(archive: Archive, split: str) -> Graphs:
    """The label graphs of a split. Raises UserError for a file that holds none (one of CROHME has no symbol)."""
    graphs: Graphs = {}
    for id_, text in archive.ground_truth(split).items():
        try:
            graphs[id_] = label_graph.read(text)
            if all(not line.strip() or line.startswith("#") for line in lines(text)):
                raise InputError("empty")
        except InputError as error:
            raise UserError(f"{archive.path}: data/{split}/symLg/{id_}.lg: {error}; restore it") from None
    return graphs


def _writers(archive: Archive, split: str) -> dict[str, Any]:
    """How many there are, and how they are known: from writers.txt, by the ids, or not at all."""
    if told := archive.writers(split):
        return {"n": len({*told.values()}), "known by": "writers.txt"}
    groups, over = writers([*archive.captions(split)])
    return {"n": len({*groups}), "known by": "ids"} if over == "writers" else {"n": None, "known by": "nothing"}


def _trained(archive: Archive) -> dict[str, set[Caption] | None]:
    """The captions of test sets that training has, by itself and with what a preset generates; None if not known."""
    if TRAIN not in archive.splits:
        return {"captions_in_train": None, "captions_in_train_or_parts": None}
    wanted = {tuple(tokens) for split in archive.test_splits for tokens in archive.captions(split).values()}
    parts = resolve("comer-fusion", WITH_PARTS, 0).data
    return {
        "captions_in_train": seen(archive, Data(), wanted),
        "captions_in_train_or_parts": seen(archive, parts, wanted) if archive.has_ink else None,
    }


def _compare(
    archive: Archive, first: str, second: str, images: dict[str, tuple[list[str], list[np.ndarray]]]
) -> dict[str, Any]:
    """What two splits share: ids, formulas, writers by name, and pairs of ids of equal or nearly equal images."""
    ids = [*archive.captions(first)], [*archive.captions(second)]
    places: dict[str, list[int]] = {}
    for place, digest in enumerate(images[second][0]):
        places.setdefault(digest, []).append(place)
    formulas = [{tuple(tokens) for tokens in archive.captions(split).values()} for split in (first, second)]
    equal = [(a, b) for a, digest in enumerate(images[first][0]) for b in places.get(digest, ())]
    nearly = [pair for pair in near(images[first][1], images[second][1]) if pair not in {*equal}]
    names = [
        {told.get(id_) or writer(id_) for id_ in of}
        for of, told in zip(ids, map(archive.writers, (first, second)), strict=True)
    ]
    known = all(_writers(archive, split)["n"] for split in (first, second))
    return {
        "shared_ids": len({*ids[0]} & {*ids[1]}),
        "shared_captions": len(formulas[0] & formulas[1]),
        "shared_writers": len(names[0] & names[1]) if known else None,
        "equal_images": [[ids[0][a], ids[1][b]] for a, b in equal],
        "near_images": [[ids[0][a], ids[1][b]] for a, b in nearly],
    }


def skip_reason(sample: Sample, sizes: Sizes) -> str | None:
    """Why the loader of a set's authors skips an expression; None if it does not."""
    (height, width), tokens, reasons = sample.image.shape, len(sample.tokens), []
    if height * width > sizes.max_area:
        reasons.append(f"{width} x {height} = {height * width:,} pixels (more than {sizes.max_area:,})")
    if tokens > sizes.max_tokens:
        reasons.append(f"{tokens} tokens (more than {sizes.max_tokens})")
    return " and ".join(reasons) or None
