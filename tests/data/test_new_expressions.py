"""Parts of others, as large as in CROHME, and others with a part exchanged, as a writer would draw it."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hmerbench.benchmarks.config import Data
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.ink import INKLESS, read_symbols
from hmerbench.benchmarks.data.new_expressions import (
    SYMBOL_HEIGHT,
    Line,
    exchanged,
    parse,
    parts,
    seen,
    sub_expressions,
)
from hmerbench.benchmarks.data.samples import Sample, evenly, with_ink
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training.distributed import Team
from hmerbench.benchmarks.training.trainer import Trainer
from hmerbench.evaluation import InputError
from hmerbench.evaluation.stores import ZipStore
from hmerbench.evaluation.symlg import from_latex
from hmerbench.models.vocab import Vocabulary
from tests.helpers.ink import Box, inkml, packed, written
from tests.helpers.paths import CROHME, INK
from tests.helpers.tiny import tiny_archive, tiny_config

# ---------------------------------------------------------------------------------------------------------------- parts


def spans(caption: str) -> list[str]:
    tokens = caption.split()
    return [" ".join(tokens[start:stop]) for start, stop in parts(tokens)]


def sample(id_: str, caption: str) -> Sample:
    return Sample(id_, tuple(caption.split()), np.zeros((50, 50), np.uint8))


CAPTIONS = {"a-1": r"y = \frac { x ^ { 2 } + 1 } { \sqrt { 2 } }", "a-2": "a _ { n + 1 } < ( b - c ) d", "b-1": "x"}


@pytest.fixture
def ink(tmp_path: Path) -> ZipStore:
    return packed(tmp_path / "train.zip", {id_: inkml(caption) for id_, caption in CAPTIONS.items()})


SAMPLES = [sample(id_, caption) for id_, caption in CAPTIONS.items()]


def test_parts_are_runs_of_whole_symbols_on_a_line() -> None:
    assert spans("x ^ { 2 } + 1 = y") == ["x ^ { 2 }", "x ^ { 2 } + 1", "1 = y"]
    assert spans(r"\frac { a b } { c }") == ["a b"]
    assert spans(r"\sqrt [ n + 1 ] { x y } z") == [r"\sqrt [ n + 1 ] { x y }", "n + 1", "x y"]
    assert spans(r"\sum \limits _ { i = 1 } ^ { n } i") == [r"\sum \limits _ { i = 1 } ^ { n }", "i = 1"]
    assert spans("- 1 + 2") == ["- 1", "1 + 2"]


def test_brackets_stay_in_pairs() -> None:
    assert spans("( a + b ) c") == ["( a + b )", "a + b"]
    assert spans("a ) b ( c") == []


@pytest.mark.parametrize("caption", ["x {", "x ^", r"\frac { a", "{ a } b", "} a b", r"\sqrt [ 2", "^ a b", "a b } c"])
def test_captions_that_are_not_well_formed_have_no_parts(caption: str) -> None:
    assert parse(caption.split()) is None and parts(caption.split()) == []


def test_symbols_come_in_the_order_of_the_mathml() -> None:
    symbols = read_symbols(inkml(r"\frac { a } { \sqrt { b } } < 1").encode())
    assert [symbol.token for symbol in symbols] == [r"\frac", "a", r"\sqrt", "b", "<", "1"]
    assert symbols[1].strokes[0].tolist() == [[500, 5000], [600, 5280]]


@pytest.mark.parametrize(
    "text",
    [
        "", "no xml", "<ink/>", inkml("a b").replace("</ink>", ""), inkml("a b", forget="b"),
        inkml("a b").replace("500 5000", "500 nan"), inkml("a b").replace("500 5000, ", "500, 5000, "),
        '<?xml version="1.0" encoding="foo"?>' + inkml("a b"), inkml("a b").replace("500 5000", "1e300 5"),
        inkml("a b").replace('traceDataRef="1"', 'traceDataRef="7"'), inkml("a b").replace('href="s1"', 'href="s9"'),
        '<!DOCTYPE ink [<!ENTITY a "aaaa">]>' + inkml("a b").replace(">a<", ">&a;<"),
    ],
)  # fmt: skip
def test_bad_ink_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        read_symbols(text.encode())


def test_parts_are_rendered_at_the_size_of_whole_expressions(ink: ZipStore) -> None:
    found = sub_expressions(with_ink(SAMPLES, ink), 3)
    by_caption = {" ".join(part.tokens): part for part in found}
    assert set(by_caption) <= {text for caption in CAPTIONS.values() for text in spans(caption)}
    assert sum(part.id.startswith("a-1-") for part in found) == 3 and len({part.id for part in found}) == len(found)
    for part in found:
        assert part.image.dtype == np.uint8 and set(np.unique(part.image)) == {0, 255}
        rows = np.flatnonzero(part.image.any(1))
        assert abs(rows[-1] - rows[0] - SYMBOL_HEIGHT) <= 3  # all symbols stand on one line here
        assert rows[0] == 12 and part.image.shape[0] - 1 - rows[-1] in (11, 12, 13)


def test_cuts_depend_on_the_expression_alone(ink: ZipStore) -> None:
    together, alone = (sub_expressions(with_ink(few, ink), 2) for few in (SAMPLES, SAMPLES[1:2]))
    again = [part for part in together if part.id.startswith("a-2")]
    assert [part.id for part in again] == [part.id for part in alone]
    assert all(np.array_equal(one.image, other.image) for one, other in zip(again, alone, strict=True))
    assert [(part.number, part.turns) for part in alone] == [(0, 2), (1, 2)]


def test_ink_that_does_not_fit_its_caption_is_left_out(tmp_path: Path) -> None:
    good, other = CAPTIONS["a-1"], CAPTIONS["a-2"]
    ink = packed(tmp_path / "train.zip", {"a-1": inkml(good), "a-2": inkml(good), "b-1": "no xml"})
    assert {part.id[:3] for part in sub_expressions(with_ink(SAMPLES, ink), 2)} == {"a-1"}
    with pytest.raises(UserError, match=r"train\.zip: holds no segmented pen strokes"):
        with_ink([sample("a-2", other)], ink)


def test_ink_of_two_files_for_one_expression_is_refused(tmp_path: Path) -> None:
    ink = packed(tmp_path / "train.zip", {"a-1": inkml("a b"), "again/a-1": inkml("a c")})
    with pytest.raises(UserError, match=r"a-1\.inkml and .*again/a-1\.inkml are of one expression; take one out"):
        with_ink(SAMPLES, ink)


def test_ink_on_an_image_without_room_for_margins_is_left_out(ink: ZipStore) -> None:
    tiny = [replace(one, image=np.zeros((20, 20), np.uint8)) for one in SAMPLES[1:]]
    assert [one.ink is None for one in with_ink([SAMPLES[0], *tiny], ink)] == [False, True, True]


@pytest.mark.parametrize("key", ["sub_expressions: 2", "substitution: 0.5"])
def test_a_preset_with_ink_is_tied_to_it(tmp_path: Path, key: str) -> None:
    archive, preset = open_archive(tiny_archive(tmp_path / "crohme")), tmp_path / "parts.yaml"
    preset.write_text(f"{{data: {{{key}}}, select: last, training: {{schedule: {{name: cosine}}}}}}")
    with pytest.raises(UserError, match=r"inkml/train\.zip: no such archive.*sub_expressions.*to 0"):
        resolve("comer-fusion", str(preset), 7, archive)
    (tmp_path / "inkml").mkdir()
    packed(tmp_path / "inkml/train.zip", {"a": inkml("a b")})
    config = resolve("comer-fusion", str(preset), 7, open_archive(archive.path))
    packed(tmp_path / "inkml/train.zip", {"a": inkml("a c")})
    other = resolve("comer-fusion", str(preset), 7, open_archive(archive.path))
    assert config.data.ink != other.data.ink and config.digest != other.digest
    with pytest.raises(UserError, match=r"train\.zip: the run has other pen strokes"):
        Trainer(RunFolder(tmp_path / "run", config), open_archive(archive.path), Team.gather())
    (tmp_path / "inkml/train.zip").write_bytes(b"PK no zip")
    with pytest.raises(InputError, match=r"train\.zip: truncated, or not a zip"):
        resolve("comer-fusion", str(preset), 7, open_archive(archive.path))


def test_held_out_expressions_give_no_parts(tmp_path: Path) -> None:
    archive = open_archive(tiny_archive(tmp_path / "crohme", train=60))
    (tmp_path / "inkml").mkdir()
    packed(tmp_path / "inkml/train.zip", {id_: inkml(" ".join(t)) for id_, t in archive.captions("train").items()})
    overrides = {"data": {"sub_expressions": 3}, "select": "heldout", "heldout": 0.3}
    trainer = Trainer(RunFolder(tmp_path / "run", tiny_config(archive.path, overrides)), archive, Team.gather(), None)
    held, formulas = zip(*((sample.id, sample.tokens) for sample in trainer.validation), strict=True)
    cut = [sample.id.rsplit("-", 2)[0] for sample in trainer.training_set.samples if "-" in sample.id]
    assert cut and not set(held) & set(cut)
    assert not set(formulas) & {sample.tokens for sample in trainer.training_set.samples}  # nor are theirs cut out


@pytest.mark.skipif(not INK.exists(), reason=f"no {INK}")
def test_crohme_gives_parts_of_nearly_every_expression() -> None:
    captions = open_archive(CROHME).captions("train").items()
    samples = evenly([sample(id_, " ".join(tokens)) for id_, tokens in captions if parts(tokens)], 120)
    found = sub_expressions(with_ink(samples, ZipStore(INK, root="")), 3)
    assert len({part.id.rsplit("-", 2)[0] for part in found}) >= 108
    vocabulary = Vocabulary()
    for part in found:
        vocabulary.encode(part.tokens)
        from_latex(part.tokens)
    heights = [part.image.shape[0] for part in found]
    assert 60 < np.median(heights) < 120  # 94 for whole expressions of few tokens


def test_captions_longer_than_a_training_takes_do_not_count_as_seen(tmp_path: Path) -> None:
    archive = open_archive(tiny_archive(tmp_path))
    captions = {tuple(tokens) for tokens in archive.captions("train").values()}
    short = {tokens for tokens in captions if len(tokens) <= 2}
    assert seen(archive, Data(max_tokens=2), captions) == short < captions == seen(archive, Data(), captions)


# ------------------------------------------------------------------------------------------------------------- exchange


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


@pytest.mark.parametrize(
    "samples",
    [
        [], [written("a", "x + 1")], [written("a", "x ^ { 2 }")],  # no other part
        [replace(written("a", "x ^ { 2 }"), ink=None), replace(written("b", "x ^ { 3 }"), ink=None)],  # no strokes
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
