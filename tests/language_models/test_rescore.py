"""What a language model is worth: lists from a file, judged, and the choice of its share."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hmerbench.benchmarks.config import Language, Search
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.language_models import rescore as rescoring
from hmerbench.benchmarks.language_models.rescore import Listed, judged, read_lists, rescore
from hmerbench.benchmarks.runs.workspace import workspace
from hmerbench.evaluation.symlg import from_latex
from tests.helpers.tiny import tiny_archive, tiny_config


class Lines:
    """Instead of a language model: log-probability -1 for every `x`."""

    def __init__(self, *_: object) -> None:
        pass

    def __call__(self, hypotheses):
        return [-float(tokens.count("x")) for tokens in hypotheses]


def listed(*hypotheses: tuple[str, float]) -> list[Listed]:
    return [Listed(tuple(latex.split()), score) for latex, score in hypotheses]


def test_a_share_of_the_language_model_changes_who_is_first():
    truth = {name: from_latex(latex) for name, latex in {"a": "1 + 2", "b": "x", "c": "2", "none": "1"}.items()}
    lists = {
        "a": listed(("x + 2", -0.1), ("1 + 2", -0.2)),  # right from a weight of 0.4 on
        "b": listed(("x", -0.1), ("2", -0.5)),  # wrong from a weight of 0.8 on
        "c": listed(("{ 2", -0.1), ("2", -0.3), ("2", -0.3)),  # the first does not convert
    }
    lines: Any = Lines()
    found = judged(lists, truth, lines, Search(convertible=True))
    assert found.attainable == 3 and found.preferred == (1, 1)  # that of a
    exact = {weight: found.exact(Language(weight=weight)).tolist() for weight in (0.0, 0.5, 1.0)}
    assert exact == {
        0.0: [False, True, True, False],
        0.5: [True, True, True, False],
        1.0: [True, False, True, False],
    }
    assert found.best((0.0, 0.3, 0.5, 0.6, 1.0), (0.0,)) == Language(weight=0.5)
    equal = judged({"a": listed(("1 + 2", -0.1), ("2 + 1", -0.2))}, {"a": truth["a"]}, lines, Search())
    assert equal.best((0.5, 0.1), (-0.1, 0.0, 0.1)) == Language(weight=0.1)  # of equally good ones the smallest
    assert judged({"a": listed(("2 + 1", -0.1), ("1 + 2", -0.2))}, {"a": truth["a"]}, lines, Search()).preferred == (
        0,
        1,
    )
    as_found = judged(lists, truth, lines, Search())
    assert not as_found.exact(Language())[2] and as_found.attainable == 3


def put_lists(folder: Path, split: str, rows: dict[str, list[tuple[str, float]]]) -> None:
    lines = [
        {"id": id_, "nbest": [{"tokens": latex, "score": score} for latex, score in found]}
        for id_, found in rows.items()
    ]
    (folder / "predictions").mkdir(parents=True, exist_ok=True)
    (folder / f"predictions/{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"id": "a", "nbest": [{"tokens": "x"}]}', "line 2: not a list of hypotheses with tokens and a finite score"),
        ('{"id": "a", "nbest": [{"tokens": "x", "score": NaN}]}', "line 2: not a list of hypotheses"),
        ('{"id": "a", "tokens": "x"}', "line 2: not a list of hypotheses"),
        ("{", "line 2: not a list of hypotheses"),
        ("\xff", "not UTF-8"),
    ],
)
def test_lists_that_are_none_are_one_clear_line(tmp_path, line, fault):
    put_lists(tmp_path, "2014", {"a": [("x", -0.1)]})
    path = tmp_path / "predictions/2014.jsonl"
    path.write_bytes(path.read_bytes() + line.encode("latin-1"))
    with pytest.raises(UserError, match=fault) as caught:
        read_lists(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_what_is_chosen_on_held_out_expressions_holds_for_all_sets(tmp_path, monkeypatch):
    monkeypatch.setattr(rescoring, "Lines", Lines)
    archive = open_archive(tiny_archive(tmp_path / "archive"))
    config = tiny_config(archive.path)
    for name, split, part in (("trial", "heldout", "train"), ("run", "2014", "2014")):
        lists = {
            id_: [("x", -0.1), (" ".join(tokens), -0.2)] for id_, tokens in list(archive.captions(part).items())[:4]
        }
        put_lists(tmp_path / name, split, lists)
        (tmp_path / name / "config.yaml").write_text(config.to_yaml())
    rows = rescore(archive, tmp_path / "trial", [tmp_path / "run"], tmp_path / "lm", tmp_path)
    assert not (tmp_path / "rescoring.csv").exists()  # which is CROHME's
    assert pd.read_csv(workspace(archive, tmp_path) / "rescoring.csv").to_dict("records") == rows
    assert [(row["set"], row["n"], row["oracle"]) for row in rows] == [("heldout", 4, 4)] * 3 + [("2014", 5, 4)] * 3
    assert [(row["with"], row["weight"], row["length"]) for row in rows[:3]] == [
        (row["with"], row["weight"], row["length"]) for row in rows[3:]
    ]
    assert all(row["gained"] - row["lost"] == round(row["points"] * row["n"] / 100) for row in rows)
    assert max(row["gained"] for row in rows) > 0
    text = (workspace(archive, tmp_path) / "rescoring.md").read_text()
    assert rescoring.TITLE in text and text.endswith(f"{rescoring.NOTE}\n")
    (tmp_path / "run/config.yaml").write_text(config.changed({"search.alpha": 0.25}).to_yaml())
    with pytest.raises(UserError, match=r"its search\.alpha is 0\.25, that of .*trial 1; give a trial like it"):
        rescore(archive, tmp_path / "trial", [tmp_path / "run"], tmp_path / "lm", tmp_path)


def test_folders_without_lists_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(rescoring, "Lines", Lines)
    archive = open_archive(tiny_archive(tmp_path / "archive"))
    (tmp_path / "trial").mkdir()
    config = tiny_config(archive.path)
    (tmp_path / "trial/config.yaml").write_text(config.to_yaml())
    with pytest.raises(UserError, match=r"heldout\.jsonl: there are no such n-best lists"):
        rescore(archive, tmp_path / "trial", [], tmp_path / "lm", tmp_path)
    put_lists(tmp_path / "trial", "heldout", {"elsewhere": [("x", -0.1)]})
    with pytest.raises(UserError, match="has no expression of its lists"):
        rescore(archive, tmp_path / "trial", [], tmp_path / "lm", tmp_path)
    put_lists(tmp_path / "trial", "heldout", {id_: [("x", -0.1)] for id_ in archive.captions("train")})
    with pytest.raises(UserError, match="no n-best lists of test sets"):
        rescore(archive, tmp_path / "trial", [tmp_path / "trial"], tmp_path / "lm", tmp_path)
    config = config.changed({"search.language": {"weights": "lm", "weight": 0.1}})
    (tmp_path / "trial/config.yaml").write_text(config.to_yaml())
    with pytest.raises(UserError, match="a language model has ranked its lists already"):
        rescore(archive, tmp_path / "trial", [], tmp_path / "lm", tmp_path)
    assert not list(tmp_path.rglob("rescoring.csv"))
