"""Label graphs of strokes with segmentation errors: LgEval's own counts on invented pairs.

The first line of tests/fixtures/stroke_level.jsonl has the names of the fields, the Summary.txt and label lists of
`evaluate` (LgEval 0.3.5) over all pairs but the `missing` predictions, and the counts of `confHist` over the `counted`
pairs by size (one list per target; one number per wrong reading). Then one pair per line: the values of the fields by
`evaluate` of both editions and by `evallg` without INTER, and the lines of the .diff.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from hmerbench.evaluation import InputError
from hmerbench.evaluation.lgeval.confusions import Pattern, object_histogram, primitive_histogram, substructures
from hmerbench.evaluation.lgeval.label_graph import read, segment
from hmerbench.evaluation.lgeval.metrics import FIELDS, compare_graphs
from tests.helpers.commands import script
from tests.helpers.paths import FIXTURES

HEAD, *PAIRS = (json.loads(line) for line in (FIXTURES / "stroke_level.jsonl").read_text("utf-8").splitlines())


@pytest.mark.parametrize(
    ("official", "inter", "complete"),
    [("0.3.5 evaluate", True, True), ("0.3.8 evaluate", False, True), ("0.3.5 evallg", False, False)],
)
def test_every_field_of_every_pair(official: str, inter: bool, complete: bool):
    assert len(PAIRS) > 70 and tuple(HEAD["fields"]) == FIELDS
    for pair in PAIRS:
        found = compare_graphs(read(pair["prediction"]), read(pair["truth"]), inter, complete)
        assert " ".join(map(str, found.metrics.values())) == pair[official], pair
        if official == "0.3.5 evaluate":
            assert sorted(found.diff().splitlines()) == pair["diff"], pair


def test_the_pairs_exercise_every_field_and_rule():
    values = [dict(zip(FIELDS, pair["0.3.5 evaluate"].split(), strict=True)) for pair in PAIRS]
    assert all(len({row[name] for row in values}) > 1 for name in FIELDS)
    assert sum(row["D_S"] != "0" for row in values) > 30
    assert sum(line.startswith("*S") for pair in PAIRS for line in pair["diff"]) > 50
    for other in ("0.3.8 evaluate", "0.3.5 evallg"):
        assert sum(pair[other] != pair["0.3.5 evaluate"] for pair in PAIRS) > 5


def test_evaluate_from_files_to_summary(tmp_path: Path):
    for folder in ("pred", "truth"):
        (tmp_path / folder).mkdir()
    for number, pair in enumerate(PAIRS):
        (tmp_path / f"truth/e{number}.lg").write_text(pair["truth"], encoding="utf-8")
        if not pair["missing"]:
            (tmp_path / f"pred/e{number}.lg").write_text(pair["prediction"], encoding="utf-8")
    assert script("evaluate", "pred", "truth", cwd=tmp_path).returncode == 0
    results = tmp_path / "Results_pred"
    lines = (results / "Summary.txt").read_text(encoding="utf-8").splitlines()
    assert [line for k, line in enumerate(lines) if k != 1 and "Directory:" not in line] == HEAD["Summary.txt"]
    for name in ("labelsGT.txt", "labelsOutput.txt"):
        assert (results / name).read_text(encoding="utf-8") == HEAD[name]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_conf_hist_counts(size: int):
    pairs = [(read(pair["prediction"]), read(pair["truth"])) for pair in PAIRS if pair["counted"]]

    def counts(table: dict[Pattern, Counter[Pattern]]) -> list[list[int]]:
        return sorted(sorted(found.values()) for found in table.values())

    objects = object_histogram(pairs, size)
    assert sorted(map(counts, objects.values())) == HEAD["confHist"][str(size)]["objects"]
    primitives = primitive_histogram(pairs, (size,))
    assert sorted(table for by in primitives.values() for table in counts(by)) == HEAD["confHist"][str(size)]["prims"]


def test_patterns_are_equal_if_isomorphic():
    def ring(order: list[int], *labels: str) -> Pattern:
        edges = {(a, b): {"Right"} for a, b in zip(order, [*order[1:], order[0]], strict=True)}
        return Pattern({node: {labels[node % len(labels)]} for node in order}, edges, "")

    assert ring([0, 1, 2, 3], "a", "b") == ring([3, 0, 1, 2], "a", "b") == ring([2, 3, 0, 1], "b", "a")
    assert ring([0, 1, 2, 3], "a", "b") != ring([0, 2, 1, 3], "a", "b")
    six, two_threes = ring([0, 1, 2, 3, 4, 5], "a"), ring([0, 1, 2], "a")
    two_threes = Pattern(
        {node: {"a"} for node in range(6)},
        {(a, b): {"Right"} for a, b in ((0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3))},
        "",
    )
    assert hash(six) == hash(two_threes) and six != two_threes  # locally alike, but not isomorphic
    assert Pattern({}, {}, "") == Pattern({}, {}, "")


def test_substructures_grow_along_the_relations():
    edges = [("a", "b"), ("a", "c"), ("c", "d")]
    assert ["".join(sorted(group)) for group in substructures("abcd", edges, 3)] == ["abc", "acd"]
    assert [*substructures("abcdefgh", edges, 1)] == [*map(frozenset, "abcdefgh")]  # in order, whatever hashes are


def test_objects_and_relations():
    text = "O, o, x, 1.0, 1, 2\nO, p, +, 1.0, 3\nR, q, p, Sub, 1.0\nO, q, y, 1.0, 4\nR, o, p, Right, 1.0\n"
    one, other = frozenset("12"), frozenset("3")
    found = segment(read(text))  # a relation that precedes its object is left out
    assert found.objects == {one: {"x"}, other: {"+"}, frozenset("4"): {"y"}}
    assert found.relations == {(one, other): {"Right"}}
    by_primitive = "N,1,x\nN,2,x\nN,3,+\nN,4,y\nE,1,2,*\nE,2,1,*\nE,1,3,Right,1.0\nE,2,3,Right,1.0\n"
    assert segment(read(by_primitive)) == found
    half = segment(read(by_primitive.replace("E,2,3,Right,1.0\n", "")))
    assert half.objects == found.objects and not half.relations


def test_old_merges_of_different_labels_are_broken():
    graph = read("N,1,x\nN,2,x\nN,3,y\nN,4,x\nE,1,2,*,1.0\nE,2,3,*,1.0\nE,5,4,Right,1.0\nE,4,4,z,1.0\n")
    assert {node: set(labels) for node, labels in graph.nodes.items()} == {
        "1": {"MergeError"}, "2": {"MergeError"}, "3": {"MergeError"}, "4": {"x", "z"}, "5": {"_"},
    }  # fmt: skip
    assert {pair: set(labels) for pair, labels in graph.edges.items()} == {
        ("1", "2"): {"MergeError"}, ("2", "3"): {"MergeError"}, ("5", "4"): {"Right"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("O, x, x", "not a line of a label graph"),
        ("O, x_1, x, 1.0", "not a line of a label graph"),
        ("R, a, b", "not a line of a label graph"),
        ("N, 1", "not a line of a label graph"),
        ("\x00\x01", "line 2"),
        ("Q, 1", "not a line of a label graph"),
        ("O, x, x, heavy, 1", "the weight is not a number"),
        ("E, 1, 2, Right, ", "the weight is not a number"),
        ("E, 1, 2", "not a line of a label graph"),
        ("N, " + "1" * 200_000, "line 2"),
    ],
)
def test_a_malformed_line_is_named(line: str, says: str):
    with pytest.raises(InputError, match=says) as caught:
        read(f"# comment\n{line}\n", "file.lg")
    assert str(caught.value).startswith("file.lg, line 2: ") and len(str(caught.value)) < 200


def test_graphs_of_too_many_pairs_are_refused():
    text = "O, a, a, 1.0, " + ", ".join(map(str, range(1_100)))
    with pytest.raises(InputError, match="line 1: more than 1,000,000 pairs of primitives"):
        read(text)
