"""The passport of an archive on the screen."""

from typing import Any

from hmerbench.benchmarks.printing import show
from hmerbench.evaluation.datasets import TRAIN
from hmerbench.evaluation.scoring.metrics import BUCKETS

DEEPEST = 3  # depths from here on share a row
PAIRS = 3  # of images that are shown of two splits


def describe(report: dict[str, Any]) -> None:
    """Print a passport: a column per split, then what two splits share, then what is odd about one."""
    rows: dict[str, dict[str, object]] = {}
    for name, split in report["splits"].items():
        for heading, cell in _cells(split).items():
            rows.setdefault(heading, {"": heading})[name] = "–" if cell is None else cell
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
        print(
            f"words that CROHME does not have, and the captions that have each: {', '.join(map(_word, other.items()))}"
        )
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


def _word(item: tuple[str, int]) -> str:
    return f"{item[0]} ({item[1]})"
