"""Predictions in every form, raw LaTeX among them, and one clear line for each that cannot be read."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoring.inputs import read_predictions, tsv
from hmerbench.evaluation.scoring.score import evaluate
from hmerbench.evaluation.symlg.formula import formula_of, prediction_file, tokenize, untokenized
from tests.helpers.commands import hmerbench
from tests.helpers.paths import GOLDEN
from tests.helpers.scored_files import lg_folder

LATEX = {"e0": r"\frac { 1 2 } { x }", "e1": "a , b"}
TOKENS = ("x", "\\frac", "{", ",", '"', "'", "\\{", "é")
EXPECTED = {key: f"%{key}\n${text}$" for key, text in LATEX.items()}


def as_json(id_: str, text: str, split: bool = False) -> list[dict]:
    return [{id_: key, text: latex.split() if split else latex} for key, latex in LATEX.items()]


def lines(rows: list[dict]) -> str:
    return "\n".join(map(json.dumps, rows))


RECOGNIZED = [
    {"image": f"scans/{key}.HEIC", "latex": latex, "score": -0.1, "nbest": [{"latex": "x"}]}
    for key, latex in LATEX.items()
]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.jsonl", lines(as_json("id", "tokens", split=True))),
        ("p.jsonl", lines(as_json("id", "tokens"))),
        ("p.jsonl", lines(RECOGNIZED)),
        ("p.jsonl", lines(RECOGNIZED).replace('{"image', ' \t{"image')),
        ("p.json", json.dumps(as_json("img_id", "pred"))),
        ("p.json", json.dumps(as_json("image", "tokens", split=True), indent=1)),
        ("p.json", lines(RECOGNIZED)),
        ("p.json", json.dumps({f"{key}.png": {"pred": latex} for key, latex in LATEX.items()})),
        ("p.json", json.dumps({key: {"id": key, "pred": latex} for key, latex in LATEX.items()})),
        ("p.json", json.dumps(LATEX)),
        ("p.csv", '\n\r\nid,pred\ne0,\\frac { 1 2 } { x }\ne1,"a , b"\n'),
        ("p.csv", 'id,pred,score\ne0,\\frac { 1 2 } { x },1\n\ne1,"a , b",2\n'),
        ("p.csv", 'prediction,id,label\n\\frac { 1 2 } { x },e0,x\n"a , b",e1,x\n'),
        ("p.csv", '\ufeffimg_id,latex\r\ne0,\\frac { 1 2 } { x }\r\ne1,"a , b"\r\n'),
        ("p.tsv", "tokens\timage\n\\frac { 1 2 } { x }\te0.bmp\na , b\tdata/e1.bmp\n"),
    ],
)
def test_every_form_is_read(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_predictions(tmp_path / name) == EXPECTED


@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.json", "p.jsonl"])
def test_a_long_prediction_is_read_in_every_form(tmp_path: Path, name: str):
    """As in an ID.txt, which may have 4 MB."""
    latex = "x " * 1_000_000 + "x"
    table = f"id{',' if name == 'p.csv' else chr(9)}pred\ne0{',' if name == 'p.csv' else chr(9)}{latex}\n"
    row = json.dumps({"id": "e0", "pred": latex})
    (tmp_path / name).write_text({"p.json": f"[{row}]", "p.jsonl": row}.get(name, table))
    assert read_predictions(tmp_path / name) == {"e0": f"%e0\n${latex}$"}


@given(
    st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True), st.lists(st.sampled_from(TOKENS)), min_size=1)
)
def test_a_table_is_read_as_it_was_written(predictions: dict[str, list[str]]):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.tsv"
        path.write_text(tsv(predictions), encoding="utf-8")
        assert read_predictions(path) == {
            id_: prediction_file(id_, words) for id_, words in sorted(predictions.items())
        }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "key,answer\ne0,x\n", "its columns are key, answer; name them id"),
        ("a.csv", "id,pred\ne0,a,b\n", "line 2: 3 fields under 2 columns"),
        ("a.csv", 'id,pred\ne0,"a\n', "not a table"),
        ("a.csv", "", "holds no predictions"),
        ("a.csv", "id,pred\n", "holds no predictions"),
        ("a.tsv", "id\tpred\ne0\tx\ne0\ty\n", "the id e0 occurs twice"),
        ("a.json", "[]", "a.json: holds no predictions"),
        ("a.json", '"text"', "must be a JSON list of objects"),
        ("a.json", "[1]", "entry 1: not a JSON object with id"),
        ("a.json", '[{"img_id": "e0", "pred": null}]', "entry 1: img_id must be a string and pred a text"),
        ("a.json", '{"e0": "x", "e1": 3}', "entry 2: image must be a string and pred a text"),
        ("a.json", '[{"img_id": "e0", "text": "x"}]', "and tokens (or pred, prediction, predict, hypothesis, latex)"),
        (
            "a.csv",
            "id,latex,prediction\ne0,x,y\n",
            "line 2: has prediction and latex; keep the one that holds the pred",
        ),
        ("a.jsonl", '{"id": "e0", "tokens": ["x"], "pred": "y"}', "line 1: has tokens and pred; keep the one"),
        ("a.json", '{"e0": {"pred": "x", "latex": "y"}}', "entry 1: has pred and latex; keep the one"),
        ("a.tsv", 'id\tpred\ne0\tx\n\ne1\t"x\ne2\ty"\ne3\tz\n', "line 4: a quotation mark is not closed; close it"),
        ("a.json", '[{"img_id": "<script>,", "pred": "x"}]', "cannot be the id"),
        ("a.json", "[" * 100_000, "must be a JSON list"),
        ("a.xlsx", "x", ".jsonl, .json, .csv, .tsv"),
        ("a.csv", "\n\nid,pred\ne0\n", "line 4: 1 fields under 2 columns"),
        ("a.csv", "id,pred,pred\ne0,x,y\n", "its column pred occurs twice"),
        ("a.csv", "id,\x1b[31mpred\ne0,x\n", "its columns are id, \\x1b[31mpred; name them"),
        ("a.jsonl", '{"id": "e0", "pred": "x", "pred": "y"}', "line 1: the key pred occurs twice; take one out"),
        ("a.json", '[{"id": "e0", "pred": "x", "nbest": [{"a": 1, "a": 2}]}]', "the key a occurs twice"),
        ("a.json", '{"e0": "x", "e0": "y"}', "the key e0 occurs twice"),
        ("a.jsonl", '{"id": "e0", "pred": "' + "x " * 2_200_000 + '"}', "line 1: is longer than 4 million characters"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_predictions(tmp_path / name)
    assert message in str(error.value) and str(error.value).startswith(str(tmp_path / name))
    assert "\n" not in str(error.value) and "ID.txt" not in str(error.value).partition(": holds")[2]


def test_a_run_folder_is_recognized(tmp_path: Path):
    (tmp_path / "run/predictions").mkdir(parents=True)
    (tmp_path / "run/predictions/2014.tsv").write_text("id\ttokens\ne0\tx\n")
    with pytest.raises(InputError, match=r"run: this is a run folder: give its predictions/2014.tsv$"):
        read_predictions(tmp_path / "run")
    (tmp_path / "run/e1.txt").write_text("%e1\n$x$\n")
    assert list(read_predictions(tmp_path / "run")) == ["e1"]


def test_a_cell_in_quotation_marks_may_hold_a_tab(tmp_path: Path):
    (tmp_path / "p.tsv").write_text('id\ttokens\ne0\t"a\tb"\n')
    assert read_predictions(tmp_path / "p.tsv") == {"e0": "%e0\n$a b$"}
    (tmp_path / "p.tsv").write_text('id\ttokens\ne0\t"a\n\tb\nc"\n')
    assert "a" in read_predictions(tmp_path / "p.tsv")["e0"]


def test_a_folder_of_label_graphs_is_recognized(truth: str):
    with pytest.raises(
        InputError, match=r"gt: holds label graphs \(.lg\); compare these with hmerbench lgeval evaluate$"
    ):
        read_predictions(Path(truth))


def test_ids_with_an_ending_are_told_to_drop_it(tmp_path: Path, truth: str):
    for ids, fix in (
        (("e0.inkml", "e1.inkml"), "drop .inkml from the ids"),
        (("q0", "q1.png"), "give their own truth"),
    ):
        (tmp_path / "p.csv").write_text("image,pred\n" + "".join(f"{id_},x\n" for id_ in ids))
        with pytest.raises(InputError, match=rf"none of its 2 ids \({ids[0]}, ...\) is in .*; {fix}"):
            evaluate(tmp_path / "p.csv", truth)


def test_predictions_that_are_the_captions_are_doubted(tmp_path: Path):
    (tmp_path / "test").mkdir()
    captions = {f"e{k}": f"x + {k}" for k in range(100, 112)}
    (tmp_path / "test/caption.txt").write_text("".join(f"{key}\t{text}\n" for key, text in captions.items()))
    for predicted, doubted in ((captions, True), (captions | {"e100": "x + y"}, False)):
        (tmp_path / "p.jsonl").write_text(lines([{"id": key, "pred": text} for key, text in predicted.items()]))
        notes = evaluate(tmp_path / "p.jsonl", f"{tmp_path}:test").notes
        assert ("all 12 predictions are exactly the captions: are they the truth itself?" in notes) == doubted


def test_what_the_converter_drops_from_wrong_predictions_is_told(tmp_path: Path, truth: str):
    texts = {"e0": r"\dfrac { 1 2 } { x } x", "e1": r"a , \mathrm { b } \text { if }", "e2": r"x \text { if }"}
    (tmp_path / "p.json").write_text(json.dumps(texts))
    found = evaluate(tmp_path / "p.json", truth)
    told = "hold commands that the official converter drops with their content"
    assert found.right == {"e2"}
    assert f"2 of 3 predictions are wrong and {told}: \\dfrac (1), \\mathrm (1), \\text (1)" in found.notes
    (tmp_path / "p.json").write_text(json.dumps(LATEX))
    assert not [note for note in evaluate(tmp_path / "p.json", truth).notes if told in note]


def test_the_rules_of_tokenize():
    raw = r"\frac{12}{x_{1}}\{a\}\ \\'"
    assert " ".join(tokenize(raw)) == r"\frac { 1 2 } { x _ { 1 } } \{ a \} \  \\ '"
    assert tokenize(r"\sinx\sin x") == [r"\sinx", r"\sin", "x"]
    assert untokenized(raw) and untokenized("1 2 34") and not untokenized(r"\frac { 1 } 2 \{")


@given(st.text(r"\{}_^ab12 $"))
def test_split_text_is_split(text: str):
    tokens = tokenize(text)
    assert "".join("".join(tokens).split()) == "".join(text.split())
    assert not untokenized(" ".join(token for token in tokens if not token[-1].isspace()))


@pytest.fixture
def truth(tmp_path: Path) -> str:
    return str(lg_folder(tmp_path / "gt", LATEX | {"e2": "x"}))


def test_raw_and_tokenized_lines_together(tmp_path: Path, truth: str):
    """The warning counts the raw ones and says what they cost; split, all are right, and nothing is said."""
    rows = [{"id": "e0", "pred": r"\frac{12}x"}, {"id": "e1", "pred": "a , b"}, {"id": "e2", "pred": ""}]
    (tmp_path / "p.json").write_text(json.dumps(rows))
    found = evaluate(tmp_path / "p.json", truth)
    assert found.score.exact == 1 and found.score.unconverted == 1
    assert found.notes == [
        "1 of 3 predictions are empty",
        "1 of 3 predictions look untokenized (e0, ...), and digits without blanks are one number: 1 expressions are "
        "right as they are; with --tokenize 2 would be",
    ]
    split = evaluate(tmp_path / "p.json", truth, raw=True)
    assert split.score.exact == 2 and split.notes == found.notes[:1]
    assert "|tok:split|" in split.score.signature and "|tok:" not in found.score.signature


def test_formulas_without_dollars_are_told_from_empty_ones(tmp_path: Path, truth: str):
    (tmp_path / "p").mkdir()
    for key, body in {"e0": "\\frac { 1 2 } { x }", "e1": "$$", "e2": "$x$"}.items():
        (tmp_path / f"p/{key}.txt").write_text(f"%{key}\n{body}")
    assert evaluate(tmp_path / "p", truth).notes == [
        "1 of 3 predictions have text but no formula (e0, ...): write each as %ID, newline, $tokens$",
        "1 of 3 predictions are empty",
    ]


def test_compare_says_what_each_system_lacks(tmp_path: Path, truth: str):
    (tmp_path / "a.csv").write_text("id,pred\ne0,x\ne1,x\ne2,x\n")
    (tmp_path / "b.csv").write_text("id,pred\ne0,x\nother,x\n")
    done = hmerbench("compare", tmp_path / "a.csv", tmp_path / "b.csv", "--ground-truth", truth)
    assert done.returncode == 0
    told = [line for line in done.stderr.splitlines() if line.startswith(f"note: {tmp_path}/b.csv: ")]
    assert [line.partition("b.csv: ")[2] for line in told] == [
        "1 prediction has no ground truth and is left out",
        "2 of 3 expressions have no prediction",
    ]
    assert "a.csv: " not in done.stderr


def test_compare_names_its_systems_and_tells_a_result_that_splitting_turns_round(tmp_path: Path, truth: str):
    (tmp_path / "a.csv").write_text("id,pred\ne0,x\n")
    (tmp_path / "b.csv").write_text("id,pred\ne0,\\frac{12}{x}\n")
    words = ["compare", tmp_path / "a.csv", tmp_path / "b.csv", "--ground-truth", truth]
    done, split = hmerbench(*words), hmerbench(*words, "--tokenize")
    assert done.returncode == split.returncode == 0
    first, second, difference, turned = done.stdout.splitlines()[:4]
    assert first.endswith(f"exact: {tmp_path / 'a.csv'}") and second.endswith(f"exact: {tmp_path / 'b.csv'}")
    assert (first[0], second[0]) == ("A", "B")
    assert difference.startswith("A - B = +0.00 points") and "with --tokenize" in turned and "A - B = -33.33" in turned
    assert "A - B = -33.33" in split.stdout.splitlines()[2] and "with --tokenize" not in split.stdout


@pytest.mark.parametrize(("length", "told"), [(2, False), (50, True)])
def test_compare_tells_when_one_expression_carries_the_means(tmp_path: Path, truth: str, length: int, told: bool):
    """B reads two expressions better, but one endlessly."""
    (tmp_path / "a.csv").write_text(f"id,pred\ne0,{'x ' * 30}\ne1,{'x ' * 30}\ne2,x\n")
    (tmp_path / "b.csv").write_text(f"id,pred\ne0,x\ne1,x\ne2,{'x ' * length}\n")
    done = hmerbench("compare", tmp_path / "a.csv", tmp_path / "b.csv", "--ground-truth", truth)
    assert done.returncode == 0
    assert ("note: e2 alone differs by " in done.stderr) == told


def test_the_command_line_splits_and_warns(tmp_path: Path, truth: str):
    (tmp_path / "p.csv").write_text("id,pred\ne0,\\frac{12}{x}\n")
    words = ["score", "--predictions", tmp_path / "p.csv", "--ground-truth", truth, "--json"]
    for option, exact, warned in (([], 0, True), (["--tokenize"], 1, False)):
        done = hmerbench(*words, *option)
        assert done.returncode == 0 and json.loads(done.stdout)["exact"] == exact
        assert ("p.csv: 1 of 1 predictions look untokenized" in done.stderr) == warned


@pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"no golden folder {GOLDEN}")
def test_what_blanks_are_worth_to_the_released_comer(tmp_path: Path, crohme: Path):
    texts = read_predictions(GOLDEN / "comer_released/predictions_2014.zip")
    glued = {key: re.sub(r"(?<![A-Za-z]) | (?![A-Za-z])", "", formula_of(text)) for key, text in texts.items()}
    (tmp_path / "p.jsonl").write_text(lines([{"id": key, "pred": text} for key, text in glued.items()]))
    scores = [evaluate(tmp_path / "p.jsonl", f"{crohme}:2014", raw=raw).score for raw in (False, True)]
    assert [score.exact for score in scores] == [505, 585]
