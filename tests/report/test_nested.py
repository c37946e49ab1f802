"""Nested formulas: depth, and the committed predictions on MNE's sets against a count of their files."""

import hashlib
import shutil
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.importing import write
from hmerbench.benchmarks.data.importing.source import Choice
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.report import nested
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.strict_files import read_table
from hmerbench.evaluation.scoring.inputs import tsv
from tests.helpers.made_up import put_config, put_expressions, put_score
from tests.helpers.paths import ROOT
from tests.helpers.tiny import tiny_archive, tiny_config

DEPTHS = {"a + b": 0, "x ^ { 2 }": 1, r"\frac { a } { b _ { 1 } }": 2, "x ^ { y ^ { z ^ { 2 } } } + x _ { 1 }": 3}


@pytest.mark.parametrize("caption", DEPTHS)
def test_depth_is_that_of_the_deepest_structure(caption: str) -> None:
    assert nested.nesting(caption.split()) == DEPTHS[caption]


def test_images_of_another_set_are_refused(tmp_path: Path) -> None:
    crohme, mne = tiny_archive(tmp_path / "a"), tiny_archive(tmp_path / "b", test=3)
    (mne / "data/train").rename(mne / "data/N1")
    (mne / "data/2014").rename(mne / "data/N2")
    with pytest.raises(UserError, match=r"20 images of N1 are not CROHME's \(w0_0, …\); import MNE with --as-is"):
        nested.taken_from(open_archive(mne, trains=False), open_archive(crohme))


def test_the_coincidence_that_the_page_tells_is_one() -> None:
    rows = read_table(ROOT / "results/nested.csv")
    (ours,) = [row for row in rows if (row["recipe"], row["preset"]) == ("bttr-baseline", "large")]
    for name, count, images in (("N1", 1136, 1875), ("N2", 118, 304)):
        assert ours[name].split(" ")[0] == f"{100 * count / images:.2f}"
        assert f"{count:,}" in (ROOT / "results/nested.md").read_text()


def test_what_was_read_of_n3_is_counted_by_its_captions(tmp_path: Path) -> None:
    """Of some seeds alone, it says of how many; without any, there is a dash."""
    archive = tiny_archive(tmp_path / "mne", test=4)
    (archive / "data/2014").rename(archive / "data/N3")
    mne = open_archive(archive, trains=False)
    runs = [RunFolder(tmp_path / f"reproduced/comer-fusion/medium-seed{seed}", tiny_config(archive)) for seed in (7, 8)]
    assert nested.read_of_new(runs, mne, tmp_path) == "–"
    (first, truth), *others = mne.captions("N3").items()
    read = {first: truth, **{id_: [*tokens, "x"] for id_, tokens in others}}
    for run in runs:
        write_atomically(tmp_path / f"nested/comer-fusion/{run.path.name}.tsv", tsv(read))
        expected = "25.00 (1.6–86.9)" if run is runs[-1] else "25.00 (4.6–69.9), 1 seed"
        assert nested.read_of_new(runs, mne, tmp_path) == expected
    trained = Mock(**{"captions.return_value": {"a": truth, "b": ["y"]}})
    assert nested.also_trained_on(trained, mne, tmp_path) == (
        "1 of its captions are captions of CROHME's training set, too"
        "; of these, `comer-fusion/medium-seed7` reads 1 right, of the 3 others, 0"
        "; of these, `comer-fusion/medium-seed8` reads 1 right, of the 3 others, 0"
    )
    third = RunFolder(tmp_path / "reproduced/comer-fusion/medium-seed9", tiny_config(archive))
    assert nested.read_of_new([*runs, third], mne, tmp_path) == "25.00 (1.6–86.9), 2 seeds"


def test_runs_of_a_preset_that_was_changed_between_them_are_no_seeds_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, scales, right in ((7, [1.0], 9), (8, [1.0, 1.2], 5), (9, [1.0, 1.2], 5)):
        folder = tmp_path / f"reproduced/bttr/mine-seed{seed}"
        put_config(folder, recipe="bttr", preset="mine", seed=seed, search={"scales": scales})
        put_score(folder, "2014", 10, right)
        put_expressions(folder, "2014", (int(k >= right) for k in range(10)))
    monkeypatch.setattr(nested, "taken_from", lambda *_: {name: [("2014", "e0")] for name in nested.TAKEN})
    crohme = Mock(tests=("2014",), **{"captions.return_value": {f"e{k}": ["x"] for k in range(10)}})
    table = nested.nested_rows(crohme, Mock(tests=()), tmp_path)
    found = {row["seeds"]: row["depth 0 (10)"].split()[0] for row in table}
    assert found == {"1": "90.00", "2": "50.00"} and len({row["preset"] for row in table}) == 2


def test_token_match_is_that_of_the_predictions(crohme: Path, tmp_path: Path) -> None:
    mne = crohme.parents[1] / "mne/data.zip"
    if not mne.is_file():
        pytest.skip(f"{mne}: MNE is not there")
    with zipfile.ZipFile(mne) as whole, zipfile.ZipFile(tmp_path / "some.zip", "w") as some:  # 300 of each set
        for name in nested.TAKEN:
            lines = whole.read(f"data/{name}/caption.txt").splitlines(keepends=True)[:300]
            some.writestr(f"data/{name}/caption.txt", b"".join(lines))
            for picture in (f"data/{name}/img/{line.split()[0].decode()}.bmp" for line in lines):
                some.writestr(picture, whole.read(picture))
    write.import_data(tmp_path / "some.zip", tmp_path / "mne.zip", Choice(), tidy=False)
    for run in ("large-seed7", "medium-seed7", "medium-seed8"):
        place = f"reproduced/comer-fusion/{run}"
        shutil.copytree(ROOT / "results" / place, tmp_path / place, ignore=shutil.ignore_patterns("*.safetensors"))
    table = nested.nested_rows(open_archive(crohme), open_archive(tmp_path / "mne.zip", trains=False), tmp_path)
    (large,) = [row for row in table if (row["recipe"], row["preset"]) == ("comer-fusion", "large")]
    images, captions, read = {}, {}, {}
    with zipfile.ZipFile(crohme) as archive, zipfile.ZipFile(tmp_path / "some.zip") as sets:
        for year in ("2014", "2016", "2019"):
            for line in archive.read(f"data/{year}/caption.txt").decode().splitlines():
                id_, captions[year, id_] = line.split("\t")
                content = archive.read(f"data/{year}/img/{id_}.bmp")
                images[hashlib.md5(content, usedforsecurity=False).digest()] = year, id_
            predictions = ROOT / f"results/reproduced/comer-fusion/large-seed7/predictions/{year}.tsv"
            for line in predictions.read_text().splitlines():
                id_, _, read[year, id_] = line.partition("\t")
        for name in ("N1", "N2"):
            files = [file for file in sets.namelist() if file.startswith(f"data/{name}/img/") and file.endswith("bmp")]
            places = [images[hashlib.md5(sets.read(file), usedforsecurity=False).digest()] for file in files]
            right = sum(read.get(place) == captions[place] for place in places)
            assert large[name].startswith(f"{100 * right / len(files):.2f} (")
