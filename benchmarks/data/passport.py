"""The passport of an archive: read in full, measured by split and between splits, compared with what is published.

What a paper should say of its data is here: sizes, lengths, nesting, the convention of limits, how captions and symLG
differ, and what of the test sets was in training: ids, captions, parts of captions, images, writers.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import combinations
from typing import Any

import cv2
import numpy as np

from hmerbench.benchmarks.config import Data
from hmerbench.benchmarks.data.archive import Archive, abridged, inkml_beside
from hmerbench.benchmarks.data.new_expressions import Caption, seen
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.printing import counted, show
from hmerbench.benchmarks.resolve import resolve
from hmerbench.evaluation import InputError, lines
from hmerbench.evaluation.datasets import TRAIN, Sizes, sizes_of
from hmerbench.evaluation.lgeval import label_graph
from hmerbench.evaluation.scoring.conventions import COMMANDS, OPERATORS
from hmerbench.evaluation.scoring.metrics import BUCKETS, bucket, nesting
from hmerbench.evaluation.scoring.outcome import in_process
from hmerbench.evaluation.scoring.stats import writer, writers
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
        images[split] = [pixels(s.image) for s in samples], [fingerprint(s.image) for s in samples]
        splits[split] = _measure(archive, split, samples)
        splits[split]["equal_images"] = sum(count > 1 for count in Counter(images[split][0]).values())
    if faults := [fault for split in archive.unreadable.values() for fault in split]:
        raise UserError(f"{archive.path}: {counted(len(faults), 'image')} cannot be read: {abridged(faults)}")
    for name, trained in _trained(archive).items():
        for split in splits:
            found = [tuple(tokens) in trained for tokens in archive.captions(split).values()] if trained else []
            splits[split][name] = sum(found) if trained is not None and split != TRAIN else None
    known, training = archive.like, [*archive.captions(TRAIN).values()] if TRAIN in archive.splits else []
    occurring = {token for tokens in training for token in tokens}
    return {
        "path": str(archive.path),
        "name": archive.name,
        "edition": archive.edition,
        "digest": archive.digest,
        "published": known and known.model_dump(mode="json", exclude={"splits", "sheets", "digests"}),
        "vocabulary": len(archive.vocabulary) - len(SPECIAL),
        "other_words": archive.other_words,
        "unused_symbols": [word for word in Vocabulary().words[len(SPECIAL) :] if training and word not in occurring],
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
        "published": (published := known and known.has(split, archive.caption_md5(split))),
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
        "published_writers": known.splits[split].writers if known and published else None,
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
    differ, left = {}, [*graphs]
    for name, rule in (("differ", rules()), ("differ_without_limits", rules(neutral=True))):  # of those, some
        rows = in_process(texts, {id_: graphs[id_] for id_ in left}, rule).metrics
        differ[name] = left = [id_ for id_, row in rows.items() if row["D_B"]]
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
    wanted = {tuple(tokens) for split in archive.tests for tokens in archive.captions(split).values()}
    parts = resolve("comer-fusion", WITH_PARTS, 0).data
    return {
        "captions_in_train": seen(archive, Data(), wanted),
        "captions_in_train_or_parts": seen(archive, parts, wanted) if inkml_beside(archive.path).is_file() else None,
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


# -------------------------------------------------------------------------------------------------------- alike images


SIDE = 16
NEAR = 20  # bits of 256 in which the hashes of nearly equal images differ at most
ASPECT = 1.1  # how much wider, for its height, one of them may be


def pixels(image: np.ndarray) -> str:
    """The digest of an image's size and pixels."""
    return sha256(repr(image.shape).encode() + image.tobytes()).hexdigest()


def fingerprint(image: np.ndarray) -> np.ndarray:
    """A perceptual hash of an image (H, W) uint8 as 4 words of 64 bits, and the logarithm of its aspect ratio as a
    fifth.

    The hash says of each of SIDE x SIDE cells whether it is lighter than its right neighbor (dHash), in the image cut
    to its ink and made as small. It hardly changes with margins, scale, the width of lines or noise. Between CROHME's
    splits no image has one within 30 bits of another's; the closest two differ in 31.
    """
    x, y, width, height = cv2.boundingRect(image) if image.any() else (0, 0, *image.shape[::-1])
    small = cv2.resize(image[y : y + height, x : x + width], (SIDE + 1, SIDE), interpolation=cv2.INTER_AREA)
    words = np.packbits(small[:, 1:] < small[:, :-1]).view(np.uint64)
    return np.append(words, np.float64(np.log(width / height)).view(np.uint64))


def near(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Pairs of places of nearly equal images, in order, from the fingerprints of two splits."""
    others = np.stack(second)
    found = []
    for place, each in enumerate(first):
        bits = np.bitwise_count(each[:-1] ^ others[:, :-1]).sum(1, dtype=np.int64)
        for other in np.flatnonzero(bits <= NEAR):
            aspects = np.array([each[-1], others[other, -1]]).view(np.float64)
            if abs(aspects[0] - aspects[1]) <= np.log(ASPECT):
                found.append((place, int(other)))
    return found


# ------------------------------------------------------------------------------------------------------- on the screen


DEEPEST = 3  # depths from here on share a row
PAIRS = 3  # of images that are shown of two splits


def describe(report: dict[str, Any]) -> None:
    """Print a passport: a column per split, then what two splits share, then what is odd about one."""
    rows: dict[str, dict[str, object]] = {}
    for name, split in report["splits"].items():
        for heading, cell in _cells(split).items():
            row = rows.setdefault(heading, {"": heading, **dict.fromkeys(report["splits"], "–")})
            row[name] = "–" if cell is None else cell
    about = f"{report['edition']}\ndigest {report['digest'][:16]}, {report['vocabulary']} symbols"
    if published := report["published"]:
        about += f"\nlike {published['title']}: {published['license']}, {published['url']}"
    show(about, list(rows.values()))
    if report["between"]:
        shared = [
            {"splits": names} | {key.replace("_", " "): _size(value) for key, value in found.items()}
            for names, found in report["between"].items()
        ]
        show("shared", shared)
    for names, found in report["between"].items():
        for kind in ("equal_images", "near_images"):
            if pairs := found[kind]:
                told = ", ".join(" and ".join(pair) for pair in pairs[:PAIRS]) + ", …" * (len(pairs) > PAIRS)
                print(f"{names}: {kind.replace('_', ' ')}: {told}")
    for name, split in report["splits"].items():
        _tell(name, split)
    if other := report["other_words"]:
        counts = ", ".join(f"{word} ({count})" for word, count in other.items())
        print(f"words that CROHME does not have, and the captions that have each: {counts}")
    if unused := " ".join(report["unused_symbols"]):
        print(f"train: no occurrence of {unused}")


def _cells(split: dict[str, Any]) -> dict[str, object]:
    cells: dict[str, object] = {"expressions": split["n"]}
    cells |= {f"{length} tokens": count for length, count in zip(BUCKETS, split["buckets"], strict=True)}
    depths = [*split["nesting"], *[0] * DEEPEST]
    cells |= {f"nested {depth} deep": depths[depth] for depth in range(DEEPEST)}
    cells |= {f"nested {DEEPEST} deep or more": sum(depths[DEEPEST:]), "symbols": split["symbols"]}
    cells |= {f"{side}, px": "–".join(map(str, split[side])) for side in ("height", "width")}
    cells["formats"] = ", ".join(
        sorted({each.removeprefix("image/") for of in split["formats"].values() for each in of})
    )
    cells |= {"total, Mpx": round(split["pixels"] / 1e6, 1), "ink, %": round(100 * split["ink"], 1)}
    cells |= {f"limits: {how}": count for how, count in split["limits"].items()}
    symlg = split["symlg"] or {}
    cells["captions unlike symLG"] = _size(symlg["differ"]) if symlg else None
    cells["… whatever \\limits"] = _size(symlg["differ_without_limits"]) if symlg else None
    cells |= {f"symLG: limits {name}": count for name, count in symlg.get("limits", {}).items()}
    cells |= {"images that occur again": split["equal_images"]}
    cells |= {"captions in train": split["captions_in_train"], "… or parts": split["captions_in_train_or_parts"]}
    writers = split["writers"]
    cells |= {"writers": writers["n"], "… known by": writers["known by"], "… published": split["published_writers"]}
    return cells | {"as published": {True: "yes", False: "no", None: None}[split["published"]]}


def _tell(name: str, split: dict[str, Any]) -> None:
    for id_, reason in split["skipped"].items():
        print(f"{name}: the authors' loader skips {id_}: {reason}")
    if name != TRAIN and not split["with_ground_truth"]:
        # CROHME's differs from the captions for a few expressions, so it is not made from them
        told = "so no scores" if split["published"] else "so its ground truth is made from its captions"
        print(f"{name}: no symLG, {told}")


def _size(value: object) -> object:
    return len(value) if isinstance(value, list) else value
