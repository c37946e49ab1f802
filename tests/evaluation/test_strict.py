"""JSON is read an entry at a time, with the same values and the same faults as at once."""

import io
import json
import tracemalloc
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hmerbench.evaluation import InputError, strict, symlg
from hmerbench.evaluation.scoring.inputs import read_predictions
from hmerbench.evaluation.scoring.outcome import in_process
from hmerbench.evaluation.strict import json_entries, rows_of, yaml_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def entries(text: str, window: int, lists: bool = False) -> list[tuple[str | None, object]]:
    with patch.object(strict, "_WINDOW", window):
        return [(key, value) for _, key, value in json_entries(io.StringIO(text), "x", "no JSON", lists)]


@given(
    st.lists(VALUES, max_size=4) | st.dictionaries(st.text(max_size=3), VALUES, max_size=4),
    st.sampled_from([None, 1]),
    st.integers(1, 9),
)
@example([12, 3.5, True], None, 1)
@example({"a": 1e100, "b": "\\u2028"}, 1, 3)
def test_entries_are_those_of_the_whole(value: list | dict, indent: int | None, window: int) -> None:
    expected = list(value.items()) if isinstance(value, dict) else [(None, entry) for entry in value]
    assert entries(f" {json.dumps(value, indent=indent)}\n", window) == expected


@given(st.text(alphabet='[]{},:"1e.- \\\\ntrue', max_size=12), st.integers(1, 4))
@example('{"a":1,}"b":2}', 3)
@example("[1,]", 1)
@example("[]]", 1)
@example("[1][2]", 1)
@example('{"a" 1}', 1)
@example("[tru]", 2)
def test_what_is_no_json_at_once_is_none_in_parts(text: str, window: int) -> None:
    try:
        value = json.loads(text, object_pairs_hook=dict)
    except ValueError:
        value = None
    if text.strip() and not isinstance(value, list | dict):
        with pytest.raises(InputError, match=r"no JSON|occurs twice"):
            entries(text, window)
    elif isinstance(value, list):
        assert entries(text, window) == [(None, entry) for entry in value]


def test_lists_within_an_object_are_entered() -> None:
    text = '{"n": 1, "a": [1, [2]], "b": [], "c": {"d": [3]}, "e": [4]}'
    expected = [("n", 1), (None, 1), (None, [2]), ("c", {"d": [3]}), (None, 4)]
    assert entries(text, 5, lists=True) == expected


def test_only_a_window_is_in_memory() -> None:
    file = io.StringIO(json.dumps([{"id": "a", "pred": "x"}] * 100_000))
    next(json_entries(file, "x", "no JSON"))
    assert file.tell() <= 2 * strict._WINDOW


HOSTILE = {
    "row": ('[{"id": "a", "pred": "x", "n": [' + "{}," * 1_200_000 + "{}]}]", "more than 1,048,576 values"),
    "text": ('[{"id": "a", "pred": "' + "x " * 2_200_000 + '"}]', "not JSON, or longer than 4 million characters"),
    "open": ('[{"id": "a", "pred": "' + "x " * 2_200_000, "not JSON, or longer than 4 million characters"),
    "deep": ("[" * 4_000_000, "must be a JSON list"),
    "digits": ('[{"id": "a", "pred": "x", "n": ' + "1" * 4_000_000 + "}]", "must be a JSON list"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lists_are_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    """Read at once, a list takes 140 to 270 times its size."""
    text, message = HOSTILE[name]
    (tmp_path / "p.json").write_text(text)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message):
            read_predictions(tmp_path / "p.json")
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_the_graph_of_one_prediction_is_in_memory() -> None:
    """Of ten that have 500 symbols, all together would take 3 MB."""
    latex = " ".join("x" * 500)
    truth = {str(key): symlg.EMPTY_GRAPH for key in range(10)}
    tracemalloc.start()
    try:
        counts, rows, reasons = in_process({key: f"%{key}\n${latex}$" for key in truth}, truth)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts["n"] == len(rows) == 10 and not reasons and peak < 1.5e6, f"{peak:,}"


MANY = 60_000


@pytest.mark.parametrize(
    "read",
    [
        lambda: strict.json_of("{" + "".join(f'"{k}": 0,' for k in range(MANY)) + '"59999": 0}', "x", ""),
        lambda: list(rows_of(io.StringIO(",".join(map(str, [*range(MANY), MANY - 1])) + "\n"), "x")),
    ],
)
def test_a_name_that_occurs_twice_among_many_is_found_at_once(read) -> None:
    with pytest.raises(InputError, match="59999 occurs twice"):
        read()


@pytest.mark.parametrize(
    ("text", "message"),
    [("[" + "[]," * 40_000 + "]", "longer than 100,000 characters"), ("? [a]\n: 1\n", "line 1: a key that is a list")],
)
def test_yaml_that_no_person_writes_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        yaml_of(text, "card.yaml")
