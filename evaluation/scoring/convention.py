"""One set of predictions under all editions and readings of the official scorer, and the one a truth follows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from hmerbench.evaluation.lgeval.label_graph import Graph
from hmerbench.evaluation.scoring.inputs import GroundTruth
from hmerbench.evaluation.scoring.run_scripts import in_process
from hmerbench.evaluation.scoring.tokens import tokens_of
from hmerbench.evaluation.symlg import EDITIONS, READINGS, Rules

TWO_CHILDREN = "two-children Inside (convert2symLG 1.4)"
ONE_CHILD = "one-child Inside (convert2symLG 1.5)"
UNDECIDED = "undecided"


def table(texts: dict[str, str], truth: GroundTruth) -> list[dict[str, Any]]:
    """Counts over the expressions of a truth, a row per edition and reading; `texts` are the predictions by id."""
    graphs, tokens = truth.graphs(), None
    if truth.captions is not None:
        predicted = {key: tokens_of(text) for key, text in texts.items()}
        tokens = sum(predicted.get(key) == caption for key, caption in truth.captions.items())
    rows = []
    for edition in EDITIONS.values():
        for reading in READINGS.values():
            counts, _, _ = in_process(texts, graphs, Rules(reading, edition))
            rows.append({"edition": edition.name, "reading": reading.name} | counts | {"tokens": tokens})
    return rows


def convention(graphs: Iterable[Graph]) -> tuple[str, Counter[str]]:
    """Which Inside relations most roots of some graphs have, and how many roots have which. A root tells only if it has
    no index and its radicand has two members."""
    roots: Counter[str] = Counter()
    for graph in graphs:
        nodes, edges = graph.nodes, graph.edges
        inside: dict[str, set[str]] = {}
        for (parent, child), labels in edges.items():
            if "Inside" in labels and r"\sqrt" in nodes[parent]:
                inside.setdefault(parent, set()).add(child)
        if not inside:
            continue
        indexed = {parent for (parent, _), labels in edges.items() if "Above" in labels}
        right = {parent: child for (parent, child), labels in edges.items() if not labels.isdisjoint(("Right", "R"))}
        for root, members in inside.items():
            followed = {right[member] for member in members if member in right}
            if followed and root not in indexed:
                roots[TWO_CHILDREN if followed & members else ONE_CHILD] += 1
    if not roots:
        return UNDECIDED, roots
    return roots.most_common(1)[0][0], roots


def other_convention(texts: dict[str, str], truth: Mapping[str, Graph], rules: Rules) -> str | None:
    """A note with the effect on the score, where the truth's roots follow another edition of the converter than the
    predictions."""
    name, _ = convention(truth.values())
    if name == UNDECIDED or (name == TWO_CHILDREN) == rules.edition.second_inside:
        return None
    other = rules.edition._replace(second_inside=name == TWO_CHILDREN)
    ours, theirs = (
        in_process(texts, truth, Rules(rules.reading, edition))[0]["exact"] for edition in (rules.edition, other)
    )
    return (
        f"the ground truth follows the {name}, the predictions are converted the other way: "
        f"{ours} expressions are right; under the truth's convention {theirs} would be"
    )
