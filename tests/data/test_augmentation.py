"""Symbol substitution: other formulas of the same layout, rendered in the boxes of the originals, reproducibly."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.augmentation import Substitution, fitted, replacements
from hmerbench.benchmarks.data.batching import TrainingSet
from hmerbench.benchmarks.data.ink import Symbol
from hmerbench.benchmarks.data.samples import Sample, hold_out, with_ink
from hmerbench.evaluation.stores import ZipStore
from tests.helpers.ink import inkml, packed, written
from tests.helpers.paths import CROHME, INK
from tests.helpers.tiny import tiny_archive, tiny_config


def box(width: float, height: float, x: float = 0, y: float = 0) -> tuple[np.ndarray, ...]:
    """The strokes of a symbol: its diagonals."""
    corners = np.array([[x, y], [x + width, y + height], [x, y + height], [x + width, y]], float)
    return corners[:2], corners[2:]


def test_each_symbol_becomes_an_interchangeable_one() -> None:
    samples = [written("a", "1 + x = b"), written("b", "2 - y = d"), written("c", "3 + z = h")]
    substitute = Substitution(samples, 1.0)
    results = [substitute(samples[0], np.random.default_rng(seed)) for seed in range(50)]
    for sample in results:
        assert sample.id == "a" and sample.image.shape == samples[0].image.shape
        assert all(new in replacements(old) for new, old in zip(sample.tokens, samples[0].tokens, strict=True))
    assert {sample.tokens[0] for sample in results} == {"1", "2", "3"}
    assert {sample.tokens[2] for sample in results} == {"x", "z"}  # y reaches below the line
    assert {sample.tokens[4] for sample in results} == {"b", "d", "h"}
    assert {sample.tokens[1] for sample in results} == {"+"}


def test_replacements_have_similar_proportions() -> None:
    samples = [written("a", "1"), written("b", "2", (0, 0, 20, 80)), written("c", "3", (0, 0, 88, 80))]
    substitute = Substitution(samples, 1.0)
    assert {substitute(samples[0], np.random.default_rng(seed)).tokens for seed in range(30)} == {("1",), ("3",)}


def test_without_ink_or_share_an_expression_stays_as_it_is() -> None:
    inked = written("a", "1 2 3")
    bare = Sample("b", inked.tokens, inked.image)
    assert Substitution([inked], 1.0)(bare, np.random.default_rng(0)) is bare
    assert Substitution([inked], 0.0)(inked, np.random.default_rng(0)) is inked
    assert Substitution([bare], 1.0)(inked, np.random.default_rng(0)) is inked  # nothing to choose from


@pytest.mark.parametrize("width, height", [(30, 40), (0, 40), (30, 0), (0, 0), (1e-12, 5)])
@pytest.mark.parametrize("wide, high", [(20, 50), (0, 50), (20, 0), (0, 0)])
def test_a_replacement_fits_the_box_of_the_original(width: float, height: float, wide: float, high: float) -> None:
    place, symbol = Symbol("a", box(width, height, 100, 200)), Symbol("b", box(wide, high, -7, 9))
    result = fitted(symbol, place)
    assert np.isfinite(result.low).all() and (result.extent <= place.extent.max() + 1e-9).all()
    np.testing.assert_allclose(result.low + result.extent / 2, place.low + place.extent / 2)
    if min(width, height, wide, high) > 1:
        np.testing.assert_allclose(result.extent, place.extent)


def test_substitution_keeps_the_plan_and_differs_between_epochs(tmp_path: Path) -> None:
    archive = open_archive(tiny_archive(tmp_path / "crohme", train=24))
    config = tiny_config(archive.path, {})
    files = {id_: inkml(" ".join(tokens)) for id_, tokens in archive.captions("train").items()}
    samples = with_ink(archive.samples("train"), packed(tmp_path / "ink.zip", files))
    plain, other = TrainingSet(samples, config), TrainingSet(samples, config, substitution=Substitution(samples, 0.5))
    for epoch in range(2):
        assert plain.plan(epoch) == other.plan(epoch)
    indices = range(24)
    old, (new, again, later) = plain.batch(0, indices), (other.batch(epoch, indices) for epoch in (0, 0, 1))
    assert new.tokens == again.tokens and torch.equal(new.views[0][0], again.views[0][0])
    assert old.ids == new.ids and old.tokens != new.tokens != later.tokens
    assert old.views[0][0].shape == new.views[0][0].shape
    assert [len(tokens) for tokens in old.tokens] == [len(tokens) for tokens in new.tokens]


def test_held_out_formulas_do_not_occur_in_training() -> None:
    image = np.zeros((9, 9), np.uint8)
    samples = [Sample(f"{sheet}-{n}", (str(n % 7), str(sheet % 5)), image) for sheet in range(20) for n in range(4)]
    samples += [Sample(f"{sheet}-9", (f"only{sheet}",), image) for sheet in range(20)]
    training, held = hold_out(samples, 0.2, 7)
    assert held and not {sample.tokens for sample in training} & {sample.tokens for sample in held}
    assert not {sample.id.split("-")[0] for sample in training} & {sample.id.split("-")[0] for sample in held}


@pytest.mark.skipif(not INK.exists(), reason=f"no {INK}")
def test_crohmes_images_show_their_ink_where_the_canvas_puts_it() -> None:
    """All but the 21 whose image also shows strokes that belong to no symbol (results/LIMITATIONS)."""
    samples = with_ink(open_archive(CROHME).samples("train"), ZipStore(INK, root=""))
    known = [sample for sample in samples if sample.ink]
    misplaced = 0
    for sample in known:
        assert sample.ink
        drawn, image = sample.ink.canvas.draw(sample.ink.symbols.values()) > 127, sample.image > 127
        misplaced += (cv2.dilate(drawn.astype(np.uint8), np.ones((3, 3))) * image).sum() <= 0.9 * image.sum()
    assert (len(known), misplaced) == (8408, 21)


def test_crohmes_formulas_repeat(crohme: Path) -> None:
    """The figures of CROHME in the docstrings of substitution and hold_out; test_passport.py counts what it knows of
    test sets."""
    captions, image = open_archive(crohme).captions("train"), np.zeros((1, 1), np.uint8)
    samples = [Sample(id_, tuple(tokens), image) for id_, tokens in captions.items()]
    assert (len(samples), len({sample.tokens for sample in samples})) == (8834, 4832)
    for share, unseen, together in ((0.05, 279, 487), (0.08, 387, None)):
        training, held = hold_out(samples, share, 7)
        assert len(held) == unseen and (together is None or len(samples) - len(training) == together)
