"""The embedded set: the same bytes for the same seed, every symbol, convertible captions, disjoint splits."""

import zipfile

import numpy as np
import pytest

from hmerbench.benchmarks.data import synthetic
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.synthetic import drawing, embedded, expression
from hmerbench.benchmarks.errors import UserError
from hmerbench.evaluation import symlg
from hmerbench.models.vocab import Vocabulary

TRAIN, TEST = 40, 30


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return embedded(tmp_path_factory.mktemp("embedded") / "set.zip", seed=3, train=TRAIN, test=TEST)


def draw(caption: str, index: int = 0) -> np.ndarray:
    return drawing(caption.split(), np.random.default_rng(index))


def test_archive_is_read_as_embedded(small):
    archive = open_archive(small)
    assert archive.name == "embedded" and archive.splits == ("train", "test")
    assert archive.edition == f"embedded synthetic set, generator {synthetic.GENERATOR}, seed 3 ({TRAIN}/{TEST})"
    for split, size in (("train", TRAIN), ("test", TEST)):
        samples = archive.samples(split)
        assert len(samples) == size
        for sample in samples:
            assert set(np.unique(sample.image)) == {0, 255}
            margins = [sample.image[:9], sample.image[-9:], sample.image[:, :9], sample.image[:, -9:]]
            assert not any(margin.any() for margin in margins)
            assert 0.02 < (sample.image > 0).mean() < 0.3


def test_same_seed_gives_the_same_bytes_and_another_does_not(small, tmp_path):
    again = embedded(tmp_path / "again.zip", seed=3, train=TRAIN, test=TEST)
    assert again.read_bytes() == small.read_bytes()
    other = embedded(tmp_path / "other.zip", seed=4, train=TRAIN, test=TEST)
    assert open_archive(other).digest != open_archive(small).digest


def test_samples_do_not_depend_on_the_size_of_the_set(small, tmp_path):
    larger = open_archive(embedded(tmp_path / "larger.zip", seed=3, train=TRAIN, test=TEST + 20))
    for sample in open_archive(small).samples("test"):
        assert np.array_equal(sample.image, larger.image("test", sample.id))


def test_existing_set_is_kept_unless_another_is_requested(small, tmp_path, monkeypatch):
    path = tmp_path / "set.zip"
    embedded(path, seed=3, train=20, test=5)
    before = path.stat().st_mtime_ns
    embedded(path, seed=3, train=20, test=5)
    assert path.stat().st_mtime_ns == before
    monkeypatch.setattr(synthetic, "GENERATOR", synthetic.GENERATOR + 1)
    embedded(path, seed=3, train=20, test=5)
    assert path.stat().st_mtime_ns != before
    embedded(path, seed=3, train=21, test=5)
    assert len(open_archive(path).captions("train")) == 21


def test_foreign_archive_is_not_overwritten(small, tmp_path):
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(small) as source, zipfile.ZipFile(path, "w") as copy:
        for name in source.namelist():
            if not name.endswith("EMBEDDED.json"):
                copy.writestr(name, source.read(name))
    before = path.read_bytes()
    with pytest.raises(UserError, match="not an embedded set"):
        embedded(path, seed=3)
    assert path.read_bytes() == before


def test_failure_leaves_the_old_set_and_nothing_else(small, tmp_path, monkeypatch):
    path = tmp_path / "set.zip"
    embedded(path, seed=3, train=20, test=5)
    before = path.read_bytes()
    monkeypatch.setattr(synthetic, "drawing", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        embedded(path, seed=3, train=30, test=5)
    assert [p.name for p in tmp_path.iterdir()] == ["set.zip"] and path.read_bytes() == before


@pytest.mark.parametrize("seed", [7, 8])
def test_default_train_shows_every_symbol_and_suits_a_small_network(seed):
    captions = [expression(np.random.default_rng((seed, 0, index))) for index in range(2400)]
    counts = np.unique([token for tokens in captions for token in tokens], return_counts=True)
    assert set(counts[0]) == set(Vocabulary().words[3:])
    assert counts[1].min() >= 3
    lengths = [len(tokens) for tokens in captions]
    assert 4 <= np.median(lengths) <= 6 and 18 <= max(lengths) <= 40


def test_ground_truth_is_the_converted_caption(small):
    archive = open_archive(small)
    for split in archive.splits:
        truth = archive.ground_truth(split)
        for id_, tokens in archive.captions(split).items():
            assert truth[id_] == symlg.lg_text(symlg.from_latex(tokens), id_)


def test_every_form_converts_to_symlg():
    rng = np.random.default_rng(1)
    for _, form in synthetic.EXPRESSIONS + synthetic.SCRIPTS:
        symlg.from_latex(["x" if part in ("<x>", "<s>") else synthetic._symbol(rng, part) for part in form.split()])


def test_test_expressions_are_not_in_train(small):
    archive = open_archive(small)
    train = {" ".join(tokens) for tokens in archive.captions("train").values()}
    test = [" ".join(tokens) for tokens in archive.captions("test").values() if len(tokens) > 3]
    assert test and train.isdisjoint(test)


@pytest.mark.parametrize(
    ("layout", "line"),
    [
        ("x ^ { 2 }", "x 2"),
        ("x _ { 2 }", "x 2"),
        ("\\frac { a } { b }", "a b"),
        ("\\sum \\limits _ { i = 1 } ^ { n }", "\\sum i = 1 n"),
        ("\\int \\limits _ { 0 } ^ { 1 }", "\\int 0 1"),
        ("\\lim \\limits _ { n \\rightarrow \\infty }", "\\lim n \\rightarrow \\infty"),
    ],
)
def test_layout_is_two_dimensional(layout, line):
    """Scripts, limits and fractions are set above and below the line, so the image is narrower for its height."""
    shapes = [np.mean([draw(caption, i).shape for i in range(8)], axis=0) for caption in (layout, line)]
    assert shapes[0][1] / shapes[0][0] < 0.95 * shapes[1][1] / shapes[1][0]


def test_every_symbol_has_ink():
    structure = {"{", "}", "^", "_", "\\limits", "\\frac", "\\sqrt"}
    drawn = {symbol: draw(symbol) for symbol in Vocabulary().words[3:] if symbol not in structure}
    assert all(image.sum() > 255 * 5 for image in drawn.values())
