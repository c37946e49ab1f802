"""Sub-expressions: well-formed, rendered as in CROHME, reproducible, and without those of unusable ink."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmerbench.benchmarks.config import Data
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.ink import read_symbols
from hmerbench.benchmarks.data.new_expressions import SYMBOL_HEIGHT, parse, parts, seen, sub_expressions
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
from tests.helpers.ink import inkml, packed
from tests.helpers.paths import CROHME, INK
from tests.helpers.tiny import tiny_archive, tiny_config


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
