"""Attention and refinement term of an expression: the arrays, and the figures made from them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hmerbench.benchmarks.data.batching import evaluation_batches
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.data.synthetic import drawing
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.recognition.attention import TracedAttention, trace
from hmerbench.benchmarks.recognition.recognizer import Recognizer
from hmerbench.benchmarks.report.figures import attention
from hmerbench.benchmarks.report.figures.attention import beside, figure, figure4, inked
from hmerbench.models.comer import CoMER
from hmerbench.models.decoder import Trace, bidirectional_targets
from hmerbench.models.network import Network, build
from hmerbench.models.vocab import Vocabulary
from tests.helpers.tiny import tiny_archive, tiny_config

TOKENS = list("x^{2}+x^{2}+x^{2}")
INK = drawing(TOKENS, np.random.default_rng(1))


@pytest.fixture(scope="module")
def traced(medium: Recognizer) -> TracedAttention:
    return trace(medium.model, medium.config, INK, TOKENS)


def test_shapes_and_sums_of_the_arrays(traced: TracedAttention) -> None:
    T, h, w = traced.looked_Thw.shape
    assert traced.tokens == (*TOKENS, "<eos>") and len(TOKENS) + 1 == T
    np.testing.assert_allclose(traced.looked_Thw.sum((1, 2)), 1, atol=1e-5)
    assert traced.suppressed_Thw is not None and traced.suppressed_Thw.shape == (T, h, w)
    assert (h - 1) * traced.cell[0] < INK.shape[0] <= h * traced.cell[0] + 1e-6
    assert (w - 1) * traced.cell[1] < INK.shape[1] <= w * traced.cell[1] + 1e-6
    assert traced.cell == pytest.approx((21.3, 21.3), rel=0.02)  # 8 px of an image at 0.375


def test_the_arrays_equal_the_decoders_own_trace(traced: TracedAttention, medium: Recognizer) -> None:
    """The trace of the decoder in float32 on the padded grid."""
    batch, layers = evaluation_batches([Sample("", (), INK)], medium.config, 1)[0], Trace()
    inputs_BT, _ = bidirectional_targets([Vocabulary().encode(TOKENS)])
    assert isinstance(medium.model, CoMER)
    with torch.no_grad():
        images, mask = batch.views[0]
        features, mask = medium.model.encode(images.float() / 255, mask)
        medium.model.decoder(features, mask, inputs_BT[:1], layers)
    T, h, w = traced.looked_Thw.shape
    own = layers[-1].attention[0].mean(0).view(T, *mask.shape[1:])
    np.testing.assert_allclose(traced.looked_Thw, own[:, :h, :w], atol=1e-4)
    assert own.sum() == pytest.approx(own[:, :h, :w].sum().item(), rel=1e-5)  # nothing lies in the padding
    assert traced.suppressed_Thw is not None and layers[-1].refinement is not None
    own = layers[-1].refinement[0].mean(0).view(T, *mask.shape[1:])[:, :h, :w]
    np.testing.assert_allclose(traced.suppressed_Thw, own - own.amin((1, 2), keepdim=True), atol=1e-2)


def test_a_network_without_attention_is_refused(medium: Recognizer) -> None:
    blind = Network(medium.config.model)
    with pytest.raises(UserError, match="the network comer has no attention to show; give a run of another one"):
        trace(blind, medium.config, INK, TOKENS)


def test_attention_advances_and_coverage_follows(traced: TracedAttention) -> None:
    """Left to right over the symbols of a line; what has been read is suppressed more than what is to come."""
    places = traced.looked_Thw.sum(1) @ np.arange(traced.looked_Thw.shape[2])  # mean column
    reading = [places[step] for step in inked(traced)[:-1]]
    assert np.corrcoef(reading, np.arange(len(reading)))[0, 1] > 0.95
    suppressed = traced.suppressed_Thw
    assert suppressed is not None and suppressed.min() == 0 and suppressed[0].max() < 1e-4  # no past at the first step
    middle = TOKENS.index("+", 6)
    column = round(places[middle])
    assert suppressed[middle][:, :column].mean() > 1.5 * suppressed[middle][:, column + 1 :].mean()


def test_a_network_without_coverage_has_no_refinement_term(tmp_path: Path) -> None:
    config = tiny_config(tiny_archive(tmp_path), recipe="bttr-baseline")
    traced = trace(build(config.model), config, INK, TOKENS)
    assert traced.suppressed_Thw is None
    assert Image.open(beside(tmp_path / "drawn", traced)).width == 1400


def test_untraceable_input_is_refused(medium: Recognizer) -> None:
    with pytest.raises(UserError, match="700 x 700 px"):
        trace(medium.model, medium.config, np.zeros((700, 700), np.uint8), TOKENS)
    with pytest.raises(ValueError, match="nonsense"):
        trace(medium.model, medium.config, INK, ["nonsense"])


def test_every_symbol_has_its_tile(traced: TracedAttention) -> None:
    drawn = figure([traced, replace(traced, suppressed_Thw=None)])
    titles = [axes.get_title(loc="left") for part in drawn.subfigs for axes in part.axes]
    shown = [f"{step + 1}  {traced.tokens[step]}" for step in inked(traced)]
    assert [title for title in titles if title] == ["(a) input", *shown, "(b) input", *shown]
    assert [traced.tokens[step] for step in inked(traced)] == [*"x2+x2+x2", "<eos>"]


def test_nothing_is_cut_off_or_covered(traced: TracedAttention) -> None:
    drawn = figure([traced])
    tiles = [axes for axes in drawn.subfigs[0].axes if axes.axison]
    boxes = [axes.get_tightbbox() for axes in tiles]
    assert all(box is not None for box in boxes)
    for number, box in enumerate(box for box in boxes if box):
        assert drawn.bbox.x0 - 1 <= box.x0 and box.x1 <= drawn.bbox.x1 + 1
        assert drawn.bbox.y0 - 1 <= box.y0 and box.y1 <= drawn.bbox.y1 + 1
        inside = [other.get_window_extent() for other in tiles[number + 1 :]]
        assert not any(box.shrunk(0.99, 0.99).overlaps(other) for other in inside)


def test_figure_4_has_the_same_bytes_each_time(tmp_path: Path, quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TYPESET", [("x ^ { 2 }", 1)])
    first, again = (figure4(tmp_path / name, weights=quick) for name in ("a", "b"))
    assert [path.relative_to(tmp_path / "a") for path in first] == [
        Path(f"local/figures/fig4-attention.{kind}") for kind in ("pdf", "svg", "png")
    ]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_figure_4_of_an_archive_stays_local(tmp_path: Path, quick: Path) -> None:
    archive = tiny_archive(tmp_path / "archive")
    paths = figure4(tmp_path, archive, ["w0_1"], quick)
    assert {path.parent for path in paths} == {tmp_path / "local/figures"}
    with pytest.raises(UserError, match="no expression 'w9'"):
        figure4(tmp_path, archive, ["w9"], quick)
    with pytest.raises(UserError, match="9 expressions are too many for one figure; give at most 8 ids"):
        figure4(tmp_path, archive, ["w0_1"] * 9, quick)
