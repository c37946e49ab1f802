"""The same predictions under every edition and reading of the official scorer, and which of them a truth follows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluation.scoring.inputs import matched, tokens_of
from evaluation.scoring.run_scripts import in_process
from evaluation.symlg import EDITIONS, READINGS, Rules, SymLG, read

TWO, ONE, UNDECIDED = "two-children Inside (convert2symLG 1.4)", "one-child Inside (convert2symLG 1.5)", "undecided"


def table(predictions: Path, ground_truth: str) -> list[dict[str, Any]]:
    """One row per edition and reading: counts of n expressions. Raises InputError."""
    texts, truth, _ = matched(predictions, ground_truth)
    tokens = None
    if truth.captions is not None:
        found = {key: tokens_of(text) for key, text in texts.items()}
        tokens = sum(found.get(key) == caption for key, caption in truth.captions.items())
    rows = []
    for edition in EDITIONS.values():
        for reading in READINGS.values():
            counts, _, _ = in_process(texts, truth.symlg, Rules(reading, edition))
            rows.append({"edition": edition.name, "reading": reading.name} | counts | {"tokens": tokens})
    return rows


def convention(graphs: Iterable[SymLG]) -> tuple[str, Counter[str]]:
    """Which Inside relations the roots of some graphs have; and how many roots show it. A root tells where its
    radicand has two members and it has no index."""
    roots: Counter[str] = Counter()
    for graph in graphs:
        labels = {item.id: item.label for item in graph.objects}
        inside: dict[str, set[str]] = {}
        right: dict[str, str] = {}
        indexed = set()
        for parent, child, relation in graph.relations:
            if relation == "Inside":
                inside.setdefault(parent, set()).add(child)
            elif relation in ("Right", "R"):
                right[parent] = child
            elif relation == "Above":
                indexed.add(parent)
        for root, members in inside.items():
            if labels.get(root) != r"\sqrt" or root in indexed:
                continue
            followed = {right[member] for member in members if member in right}
            if followed & members:
                roots[TWO] += 1
            elif followed:
                roots[ONE] += 1
    if not roots:
        return UNDECIDED, roots
    return roots.most_common(1)[0][0], roots


def convention_of(truth: Mapping[str, str]) -> tuple[str, Counter[str]]:
    """`convention` of symLG texts by id. Raises InputError for what is no symLG."""
    return convention(read(text, f"{key}.lg") for key, text in truth.items())


def other_convention(predictions: Path, ground_truth: str, rules: Rules) -> str | None:
    """What to say where the truth's roots follow another edition of the converter than the predictions: by how
    many correct expressions that changes the score."""
    texts, truth, _ = matched(predictions, ground_truth)
    name, _ = convention_of(truth.symlg)
    if name == UNDECIDED or (name == TWO) == rules.edition.second_inside:
        return None
    other = replace(rules.edition, second_inside=name == TWO)
    both = [Rules(rules.reading, edition) for edition in (rules.edition, other)]
    counts = [in_process(texts, truth.symlg, each)[0]["exact"] for each in both]
    return (
        f"{ground_truth} follows the {name}, the predictions are converted the other way: "
        f"{counts[0]} expressions are right, by the truth's convention {counts[1]} would be"
    )
