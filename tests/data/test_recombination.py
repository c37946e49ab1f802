"""Recombined CROHME: the same every time, told apart from plain CROHME, its tests untouched; bad ink is harmless."""

import hashlib
import zipfile
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks import __main__ as cli
from benchmarks.config import resolve
from benchmarks.data import crohme, recombination
from benchmarks.data.crohme import Archive, KnownSplit, evenly, open_archive
from benchmarks.data.recombination import Expression, Symbol, draw, read_symbols, recombined
from benchmarks.errors import UserError
from benchmarks.reproduce import workspace
from benchmarks.train import split_heldout
from evaluation.symlg import from_latex, write
from tests.helpers.places import CROHME

INKML = CROHME.parent / "inkml/train.zip"
Sources = tuple[Path, Path]  # strokes, archive
LABELS = ["2 x + 3", "x ^ { 2 }", "8 - 1", r"\frac { a } { b }", r"\sqrt { 5 }", "1", "y < 7", "n + n"]


def expression(id_: str, latex: str, hand: np.random.Generator) -> Expression:
    """Symbols as zigzags side by side, one stroke each; a structure is not drawn."""
    labels = [t for t in latex.replace(r"\frac", "-").split() if t not in "{}^_"]
    symbols = []
    for place, label in enumerate(labels):
        corners = hand.uniform((30 * place, 0), (30 * place + 12, 30), (5, 2))
        symbols.append(Symbol(label, (corners,)))
    low = np.concatenate([s.strokes[0] for s in symbols]).min(0)
    return Expression(id_, tuple(latex.split()), tuple(Symbol(s.label, (s.strokes[0] - low,)) for s in symbols))


def inkml(drawn: Expression) -> str:
    """In a pen's units: ten to a pixel, from anywhere."""
    traces, groups = "", ""
    for number, symbol in enumerate(drawn.symbols):
        points = ", ".join(f"{x:.0f} {y:.0f}" for x, y in symbol.strokes[0] * 10 + 5000)
        label = {"<": r"\lt"}.get(symbol.label, symbol.label)
        traces += f'<trace id="{number}">{points}</trace>'
        views = f'<annotation type="truth">{label}</annotation><traceView traceDataRef="{number}"/>'
        groups += f"<traceGroup>{views}</traceGroup>"
    return f'<ink xmlns="http://www.w3.org/2003/InkML">{traces}<traceGroup>{groups}</traceGroup></ink>'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """An archive that counts as published, and its strokes."""
    hand, data, ink = np.random.default_rng(1), tmp_path / "data.zip", tmp_path / "train.zip"
    known = {}
    with zipfile.ZipFile(data, "w") as archive, zipfile.ZipFile(ink, "w") as strokes:
        for split, copies in {"train": 6, "2014": 1}.items():
            drawn = [expression(f"sheet{k}-{n}", latex, hand) for k in range(copies) for n, latex in enumerate(LABELS)]
            captions = "".join(f"{e.id}\t{' '.join(e.tokens)}\n" for e in drawn)
            archive.writestr(f"data/{split}/caption.txt", captions)
            for e in drawn:
                archive.writestr(f"data/{split}/img/{e.id}.bmp", cv2.imencode(".bmp", draw(e))[1].tobytes())
                archive.writestr(f"data/{split}/symLg/{e.id}.lg", write(from_latex(e.tokens), e.id))
                if split == "train":
                    strokes.writestr(f"train/inkml/{e.id}.inkml", inkml(e))
            known[split] = KnownSplit(hashlib.md5(captions.encode()).hexdigest(), len(drawn), ())
    monkeypatch.setattr(crohme, "EDITIONS", {"a small CROHME": known})
    return ink, data


def rewritten(path: Path, name: str, change) -> Path:
    """The zip with one entry changed."""
    with zipfile.ZipFile(path) as old:
        content = {entry: old.read(entry) for entry in old.namelist()}
    content[name] = change(content[name])
    target = path.with_name(f"changed-{path.name}")
    with zipfile.ZipFile(target, "w") as new:
        for entry, data in content.items():
            new.writestr(entry, data)
    return target


def symbols_of(tokens: tuple[str, ...]) -> Counter[str]:
    return Counter("-" if t == r"\frac" else t for t in tokens if t not in ("{", "}", "^", "_"))


def test_an_archive_of_its_own_with_the_same_tests(sources: Sources, tmp_path: Path) -> None:
    plain = open_archive(sources[1])
    assert plain.name == "crohme"
    more = open_archive(recombined(*sources, tmp_path / "more.zip", copies=2, seed=7))
    assert more.name == "crohme-recombined"
    assert more.edition.startswith("a small CROHME, with recombined training expressions")
    assert more.digest != plain.digest
    assert workspace(more, tmp_path) == tmp_path / "local" / f"crohme-recombined-{more.digest[:8]}"
    assert resolve("comer-fusion", "fast", 7, more).data.name == "crohme-recombined"
    n = len(plain.captions("train"))
    assert list(more.captions("train").items())[:n] == list(plain.captions("train").items())
    assert len(more.captions("train")) == 3 * n
    assert more.caption_md5("2014") == plain.caption_md5("2014")
    with zipfile.ZipFile(plain.path) as old, zipfile.ZipFile(more.path) as new:
        for name in old.namelist():
            assert new.read(name) == old.read(name) or name == "data/train/caption.txt"
    for id_, truth in more.ground_truth("train").items():
        assert truth == write(from_latex(more.captions("train")[id_]), id_)


def test_the_same_bytes_every_time(sources: Sources, tmp_path: Path) -> None:
    paths = [recombined(*sources, tmp_path / f"{i}.zip", 1, seed) for i, seed in enumerate((7, 7, 8))]
    first, again, other = (path.read_bytes() for path in paths)
    assert first == again
    assert first != other


def test_new_hands_in_old_places_and_labels_that_fit(sources: Sources) -> None:
    archive = open_archive(sources[1])
    old = recombination.read_expressions(sources[0], archive)
    assert len(old) == len(archive.captions("train"))
    new = list(recombination._copies(old, 1, 7, set()))
    assert {e.tokens for e in new} - {e.tokens for e in old}
    kept = 0
    for before, after in zip(old, new, strict=True):
        assert after.id == f"{before.id}000"
        assert symbols_of(after.tokens) == Counter(s.label for s in after.symbols)
        renamed = {(a, b) for a, b in zip(before.tokens, after.tokens, strict=True) if a != b}
        assert len(renamed) <= 1  # and every one of them
        assert all(a not in after.tokens or b in before.tokens for a, b in renamed)
        for was, now in zip(before.symbols, after.symbols, strict=True):
            assert np.allclose(was.box.mean(0), now.box.mean(0))
            assert (np.ptp(now.box, axis=0) <= np.maximum(np.ptp(was.box, axis=0), 3) + 1e-6).all()
            kept += was is now
    assert 0.3 < kept / sum(len(e.symbols) for e in old) < 0.6


def test_held_out_sheets_keep_what_was_made_of_them(sources: Sources, tmp_path: Path) -> None:
    samples = open_archive(recombined(*sources, tmp_path / "more.zip", 1, 7)).samples("train")
    samples += [type(s)(f"other{i}-{s.id}", s.tokens, s.image) for s in samples for i in range(4)]  # more sheets
    train, held = split_heldout(samples, 0.1, 7)
    assert held and not {s.id.rsplit("-", 1)[0] for s in train} & {s.id.rsplit("-", 1)[0] for s in held}


def test_only_what_is_told_counts_as_recombined(sources: Sources, tmp_path: Path) -> None:
    more = recombined(*sources, tmp_path / "more.zip", 1, 7)
    assert (
        open_archive(rewritten(more, "data/2014/caption.txt", lambda c: c.replace(b"n + n", b"n - n"))).name
        == "foreign"
    )
    assert (
        open_archive(rewritten(more, "data/train/caption.txt", lambda c: c.replace(b"8 - 1", b"8 + 1", 1))).name
        == "foreign"
    )
    with pytest.raises(UserError, match=r"with recombined training.*only CROHME as published"):
        recombined(sources[0], more, tmp_path / "again.zip", 1, 7)
    with pytest.raises(UserError, match="is there already"):
        recombined(*sources, more, 1, 7)


HEAD = '<ink xmlns="http://www.w3.org/2003/InkML">'
GROUP = '<traceGroup><traceGroup><annotation>x</annotation><traceView traceDataRef="{}"/></traceGroup></traceGroup>'
ONE = GROUP.format(0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"<ink>",
        f'<!DOCTYPE a [<!ENTITY a "1 2"><!ENTITY b "{"&a;" * 99}">]>{HEAD}<trace id="0">&b;</trace></ink>'.encode(),
        f'<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/hostname">]>{HEAD}<trace id="0">&a;</trace>{ONE}</ink>'.encode(),
        f'{HEAD}<trace id="0">1 2, 3</trace>{ONE}</ink>'.encode(),
        f'{HEAD}<trace id="0">1 nan, 3 4</trace>{ONE}</ink>'.encode(),
        f'{HEAD}<trace id="0">1 x, 3 4</trace>{ONE}</ink>'.encode(),
        f'{HEAD}<trace id="0"></trace>{ONE}</ink>'.encode(),
        f'{HEAD}<trace id="0">1 2</trace>{GROUP.format(1)}</ink>'.encode(),
        f'{HEAD}<trace id="0">1 2</trace><trace id="1">1 2</trace>{ONE}</ink>'.encode(),
        f"{HEAD}</ink>".encode(),
        f'{HEAD}<trace id="0">1e308 0, -1e308 5</trace>{ONE}</ink>'.encode(),
    ],
)
def test_an_expression_with_bad_ink_is_left_out(sources: Sources, text: bytes) -> None:
    ink = rewritten(sources[0], "train/inkml/sheet0-0.inkml", lambda _: text)
    found = recombination.read_expressions(ink, open_archive(sources[1]))
    assert {e.id for e in found} == set(open_archive(sources[1]).captions("train")) - {"sheet0-0"}


def test_what_is_no_zip_of_ink_is_said_in_a_line(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "broken.zip").write_bytes(sources[0].read_bytes()[:-40])
    for path in (tmp_path / "nowhere.zip", tmp_path / "broken.zip"):
        with pytest.raises(UserError, match=rf"{path.name}: cannot be read"):
            recombined(path, sources[1], tmp_path / "out.zip", 1, 7)
    with pytest.raises(UserError, match=r"data\.zip: no ID\.inkml in it fits"):
        recombined(sources[1], sources[1], tmp_path / "out.zip", 1, 7)
    assert not (tmp_path / "out.zip").exists()


@pytest.mark.skipif(not CROHME.exists() or not INKML.exists(), reason=f"no CROHME at {CROHME}, no ink at {INKML}")
def test_drawn_as_the_archive_was() -> None:
    archive: Archive = open_archive(CROHME)
    with zipfile.ZipFile(INKML) as ink:
        for id_ in evenly(list(archive.captions("train")), 40):
            image = archive.image("train", id_)
            try:
                symbols = recombination._as_drawn(read_symbols(ink.read(f"train/inkml/{id_}.inkml")), image)
            except ValueError:
                continue
            ours = draw(Expression(id_, (), tuple(symbols)))
            assert np.abs(np.subtract(ours.shape, image.shape)).max() <= 1
            height, width = np.minimum(ours.shape, image.shape)
            both = ours[:height, :width] > 0, image[:height, :width] > 0
            assert (both[0] & both[1]).sum() > 0.6 * (both[0] | both[1]).sum()
            assert (ours > 0).sum() == pytest.approx((image > 0).sum(), rel=0.1)


def test_the_verb(sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    line = ["recombine", str(tmp_path / "more.zip"), "--inkml", str(sources[0]), "--crohme", str(sources[1])]
    monkeypatch.setattr("sys.argv", ["benchmarks", *line])
    assert cli.main() == 0
    assert "with recombined training expressions (96/8)" in capsys.readouterr().out
    assert cli.main() == 1
    assert capsys.readouterr().err.strip().endswith("is there already; move it, or choose another name")
