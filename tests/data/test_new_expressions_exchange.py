"""Exchange: parts in the same role of other expressions, drawn where a writer would have put them, reproducibly."""

from itertools import pairwise

import numpy as np
import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.ink import INKLESS, Canvas, Ink, Symbol
from hmerbench.benchmarks.data.new_expressions import Line, exchanged, parse
from hmerbench.benchmarks.data.samples import Sample, evenly, with_ink
from hmerbench.evaluation.symlg import from_latex
from hmerbench.models.vocab import Vocabulary
from tests.helpers.paths import CROHME, INK

Box = tuple[float, float, float, float]  # left, top, right, bottom


def written(id_: str, caption: str, *boxes: Box) -> Sample:
    """An expression whose symbols are the diagonals of the boxes; without boxes, squares side by side."""
    tokens = tuple(caption.split())
    places = [place for place, token in enumerate(tokens) if token not in INKLESS]
    boxes = boxes or tuple((100 * i, 0, 100 * i + 80, 80) for i in range(len(places)))
    corners = np.array(boxes, float).reshape(-1, 2, 2)
    symbols = {place: Symbol(tokens[place], (stroke,)) for place, stroke in zip(places, corners, strict=True)}
    canvas = Canvas.of(symbols.values(), 0.5)
    return Sample(id_, tokens, canvas.draw(symbols.values()), Ink(symbols, canvas))


def boxes_of(sample: Sample) -> dict[str, Box]:
    assert sample.ink
    corners = {s.token: (*s.low, *(s.low + s.extent)) for s in sample.ink.symbols.values()}
    return {token: tuple(round(float(side), 6) for side in sides) for token, sides in corners.items()}  # type: ignore[misc]


def only(host: Sample, donor: Sample) -> dict[str, Box]:
    """The boxes of `host` once a part of `donor` stands in it."""
    made = [sample for sample in exchanged([host, donor], 1) if sample.id.startswith(host.id)]
    assert len(made) == 1
    return boxes_of(made[0])


def test_a_longer_script_keeps_its_bottom_left_corner_and_moves_what_follows() -> None:
    host = written("h", "x ^ { 2 } y", (0, 0, 80, 80), (90, -40, 130, 0), (150, 0, 230, 80))
    boxes = only(host, written("d", "z ^ { a b }", (0, 0, 80, 80), (90, -50, 110, -30), (120, -50, 140, -30)))
    # symbols twice as large, so that they are as large as the 2 was
    assert boxes == {"x": (0, 0, 80, 80), "a": (90, -40, 130, 0), "b": (150, -40, 190, 0), "y": (210, 0, 290, 80)}


def test_a_subscript_keeps_its_top() -> None:
    host = written("h", "x _ { 2 }", (0, 0, 80, 80), (90, 70, 130, 110))
    tall = written(
        "d", r"z _ { \frac { a } { b } }", (0, 0, 80, 80), (90, 39, 130, 41), (90, 0, 130, 38), (90, 42, 130, 82)
    )
    assert only(host, tall)["a"][1] == 70


def test_the_bar_of_a_fraction_grows_and_the_other_part_stays_in_its_middle() -> None:
    host = written("h", r"\frac { a } { b } + c", (0, 50, 60, 50), (10, 0, 50, 40), (10, 60, 50, 100),
                   (80, 40, 100, 60), (120, 30, 160, 70))  # fmt: skip
    donor = written("d", r"\frac { p q } { p q }", *[(0, 50, 200, 50), (0, 0, 40, 40), (100, 0, 140, 40)],
                    *[(0, 60, 40, 100), (100, 60, 140, 100)])  # fmt: skip
    boxes = only(host, donor)
    assert boxes[r"\frac"] == (0, 50, 160, 50) and boxes["+"][0] == 180 and boxes["c"][0] == 220  # by 140 - 40
    assert boxes["p"][0] == 10 and boxes["q"][2] == 150  # the overhang of 10 is kept
    kept = boxes.get("a") or boxes["b"]
    assert (kept[0] + kept[2]) / 2 == 80


def test_a_root_grows_to_the_right_and_upwards_but_its_hook_stays() -> None:
    host = written("h", r"\sqrt { a } b", (0, 0, 100, 100), (50, 10, 90, 90), (120, 0, 160, 80))
    donor = written("d", r"\sqrt { p q }", (0, 0, 200, 100), (50, 0, 100, 80), (110, -40, 150, 40))
    boxes = only(host, donor)
    assert boxes["b"][0] == 180 and boxes[r"\sqrt"] == (0, -40, 160, 100)
    assert boxes["p"] == (50, 10, 100, 90) and boxes["q"] == (110, -30, 150, 50)


def test_what_lies_around_a_nested_part_moves_too() -> None:
    inner = [(0, 50, 100, 50), (10, 0, 50, 40), (55, -10, 75, 10), (20, 60, 60, 100), (120, 40, 140, 60)]
    host = written("h", r"\frac { a ^ { 2 } } { b } +", *inner)
    donor = written("d", r"x ^ { p q r }", (0, 0, 40, 40), (50, -20, 70, 0), (80, -20, 100, 0), (110, -20, 130, 0))
    made = [sample for sample in exchanged([host, donor], 8) if sample.id.startswith("h-")]
    (nested,) = {
        " ".join(s.tokens): s for s in made if "^" in s.tokens and "b" in s.tokens and "p" in s.tokens
    }.values()
    boxes = boxes_of(nested)
    assert boxes["r"] == (115, -10, 135, 10) and boxes[r"\frac"] == (0, 50, 160, 50) and boxes["+"][0] == 180
    assert boxes["b"] == (50, 60, 90, 100)


def test_parts_keep_their_role_and_captions_their_form() -> None:
    samples = [
        written(*each) for each in (("a", r"\frac { x + 1 } { y }"), ("b", r"\frac { u } { v w }"), ("c", "1 + 1"))
    ]
    made = exchanged(samples, 6)
    captions = {" ".join(sample.tokens) for sample in made}
    assert captions <= {r"\frac { u } { y }", r"\frac { x + 1 } { v w }"}
    assert len(captions) == 2 and {sample.id.rpartition("-")[0] for sample in made} == {"a", "b"}
    for sample in made:
        assert sample.ink and parse(sample.tokens)
        drawn = [sample.tokens[place] for place in sample.ink.symbols]
        assert drawn == [token for token in sample.tokens if token not in INKLESS]
        assert all(symbol.token == sample.tokens[place] for place, symbol in sample.ink.symbols.items())


def test_the_choice_is_reproducible() -> None:
    samples = [written(str(n), rf"x _ {{ {n} }} + \sqrt {{ y ^ {{ {n} }} }}") for n in range(6)]
    first, again = exchanged(samples, 2), exchanged(samples, 2)
    assert [one.id for one in first] == [other.id for other in again] and len({one.id for one in first}) == len(first)
    for one, other in zip(first, again, strict=True):
        assert one.tokens == other.tokens and np.array_equal(one.image, other.image)
    assert {(one.id, one.number, one.turns) for one in first} == {(f"{n}-x{k}", k, 2) for n in range(6) for k in (0, 1)}


def nothing(sample: Sample) -> Sample:
    return Sample(sample.id, sample.tokens, sample.image)


@pytest.mark.parametrize(
    "samples",
    [
        [], [written("a", "x + 1")], [written("a", "x ^ { 2 }")],  # no other part
        [nothing(written("a", "x ^ { 2 }")), nothing(written("b", "x ^ { 3 }"))],  # no strokes
    ],
)  # fmt: skip
def test_nothing_is_made_where_nothing_can_be_exchanged(samples: list[Sample]) -> None:
    assert exchanged(samples, 3) == []


def roles(line: Line) -> list[str]:
    return [each.role for each in line.all_lines() if each.role]


CAPTION = r"\sqrt [ 3 ] { x _ i } ^ { 2 } + \frac { 1 } { a ^ { b _ { c } } }"


def test_a_caption_is_a_tree_of_lines() -> None:
    tree = parse(tuple(CAPTION.split()))
    assert tree and [len(symbol.lines) for symbol in tree.symbols] == [3, 0, 2]
    of_root, of_fraction = ["index", "radicand", "subscript", "superscript"], ["numerator", "denominator"]
    assert roles(tree) == [*of_root, *of_fraction, "superscript", "subscript"]


@pytest.mark.skipif(not INK.exists(), reason=f"no {INK}")
def test_crohme_gives_readable_expressions_of_its_own_symbols() -> None:
    archive = open_archive(CROHME)
    some = evenly([*archive.captions("train").items()], 400)
    samples = [Sample(id_, tuple(tokens), archive.image("train", id_)) for id_, tokens in some]
    samples = with_ink(samples, archive.inkml)
    made, vocabulary = exchanged(samples, 2), Vocabulary()
    with_parts = sum(bool(s.ink and roles(tree)) for s in samples if (tree := parse(s.tokens)))
    assert len(made) > 1.5 * with_parts
    for sample in made:
        vocabulary.encode(sample.tokens)
        from_latex(sample.tokens)
        assert sample.ink and sample.image.shape == (sample.ink.canvas.height, sample.ink.canvas.width)
    # captions that no expression has, written in lines: what follows on a line stands right of what comes before
    assert len({sample.tokens for sample in made} - {sample.tokens for sample in samples}) > 0.9 * len(made)
    follows = [
        symbols[after.start].low[0] + symbols[after.start].extent[0] > symbols[before.start].low[0]
        for sample in made if sample.ink and (tree := parse(sample.tokens)) and (symbols := sample.ink.symbols)
        for line in tree.all_lines() for before, after in pairwise(line.symbols)
    ]  # fmt: skip
    assert np.mean(follows) > 0.99
