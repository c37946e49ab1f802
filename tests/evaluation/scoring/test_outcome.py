"""Scoring by scripts: a folder to keep their files in, and other scripts than ours."""

import sys
from pathlib import Path
from typing import Any

import pytest

from hmerbench.evaluation import InputError, symlg
from hmerbench.evaluation.scoring import outcome
from tests.helpers.commands import script
from tests.helpers.scored_files import BIN, TRUTH, score_files, tex_folder


def test_a_workdir_keeps_what_is_not_its_own(tmp_path: Path, truth: Path):
    work, tex = tmp_path / "work", tex_folder(tmp_path / "tex", TRUTH)
    own = tex_folder(work / "result", TRUTH | {"stray": "q"})
    for predictions in (own, tex, tex):  # in the workdir itself; in a folder of the same name; in one beside others
        with pytest.raises(InputError, match="its result would be replaced"):
            score_files(predictions, str(truth), workdir=work)
        if predictions == tex:
            (work / "thesis.tex").touch()
    assert (own / "stray.txt").exists()
    for _ in range(2):  # its own results are replaced
        assert score_files(tex, str(truth), workdir=tmp_path / "new").exact == 4


def test_a_workdir_is_usable_after_a_kill(tmp_path: Path, truth: Path, monkeypatch: pytest.MonkeyPatch):
    tex, real, left = tex_folder(tmp_path / "tex", TRUTH), Path.rename, []

    def in_this_process(name: str, arguments: list[str], workdir: Path, _: Any) -> str:
        return script(name, *arguments, cwd=workdir).stderr

    def rename(path: Path, target: Path) -> Path:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return real(path, target)

    monkeypatch.setattr(outcome, "run_script", in_this_process)
    score_files(tex, str(truth), workdir=tmp_path / "work")
    for renames in range(7):  # of eight: four folders, each put aside and replaced
        left = [None] * renames
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "rename", rename)
            score_files(tex, str(truth), workdir=tmp_path / "work")
        assert score_files(tex, str(truth), workdir=tmp_path / "work").exact == 4


def test_two_scorings_in_one_workdir_are_kept_apart(tmp_path: Path, truth: Path, monkeypatch: pytest.MonkeyPatch):
    """The second begins and ends between the two scripts of the first."""
    right, wrong = tex_folder(tmp_path / "right", TRUTH), tex_folder(tmp_path / "wrong", dict.fromkeys(TRUTH, "z"))
    found = []

    def between(name: str, arguments: list[str], workdir: Path, _: Any) -> str:
        if name == "evaluate" and not found:
            found.append(None)
            found.append(score_files(right, str(truth), workdir=tmp_path / "work").exact)
        return script(name, *arguments, cwd=workdir).stderr

    monkeypatch.setattr(outcome, "run_script", between)
    assert score_files(wrong, str(truth), workdir=tmp_path / "work").exact == 0 and found == [None, 4]
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == sorted(outcome.FOLDERS)


def other_scripts(folder: Path, tex2symlg: str, evaluate: str) -> None:
    """Another set of scripts: ours, each followed by a line of shell."""
    folder.mkdir()
    for name, more in (("tex2symlg", tex2symlg), ("evaluate", evaluate)):
        script = folder / name
        script.write_text(f'#!/bin/sh\n"{sys.executable}" "{BIN / name}" "$@"\n{more}\n')
        script.chmod(0o755)


@pytest.mark.parametrize(
    ("tex2symlg", "evaluate", "says"),
    [
        ("", "", None),
        ("rm pred_symlg/e1.lg; echo crash >&2", "", "tex2symlg lost 1 of 4 files (e1, ...); it said: crash"),
        ("rm -r pred_symlg", "", "tex2symlg lost 4 of 4"),
        ("", "rm -r Results_pred_symlg", "the scorer wrote no summary"),
        ("", "rm Results_pred_symlg/Metrics/e0.csv", "evaluate scored 4 of 4 expressions"),
        ("", ": > Results_pred_symlg/Metrics/e0.csv", "left no metrics for this file"),
        ("", "sed -i 's/D_B,0/D_B,1/' Results_pred_symlg/Metrics/e0.csv", "Summary.txt and the metrics"),
        (
            "",
            "head -5 Results_pred_symlg/Summary.txt > s; mv s Results_pred_symlg/Summary.txt",
            "not a complete LgEval",
        ),
        ("", "rm gt_symlg/e0.lg; cd Results_pred_symlg; sed -i 's/ 4$/ 3/' Summary.txt", "evaluate scored 3 of 4"),
    ],
)
def test_another_scorer_instead_of_ours(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, tex2symlg: str, evaluate: str, says: str | None
):
    other_scripts(tmp_path / "other", tex2symlg, evaluate)
    monkeypatch.setenv("LGEVAL_BIN", str(tmp_path / "other"))
    tex = tex_folder(tmp_path / "tex", TRUTH)
    if says is None:
        found = score_files(tex, f"{archive}:2014")
        assert found.exact == 4 and "|metric:symlg|scorer:LGEVAL_BIN|search" in found.signature
        with pytest.raises(InputError, match=r"LGEVAL_BIN=.*leave out reading and edition"):
            score_files(tex, f"{archive}:2014", rules=symlg.rules(edition="current"))
        assert outcome.self_check() == [] and outcome.scripts() == str(tmp_path / "other")
    else:
        with pytest.raises(InputError) as caught:
            score_files(tex, f"{archive}:2014")
        assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_scorer_that_is_wrong_or_missing_fails_the_self_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other_scripts(tmp_path / "lax", "for f in $2/*.lg; do sed -i s/OSub/OSup/ $f; done", "")
    monkeypatch.setenv("LGEVAL_BIN", str(tmp_path / "lax"))
    assert any("x _ 2" in failure for failure in outcome.self_check())
    monkeypatch.setenv("LGEVAL_BIN", str(tmp_path / "nowhere"))
    assert outcome.self_check() == [f"LGEVAL_BIN={tmp_path}/nowhere: holds no executable tex2symlg"]
