"""Right answers within dollars, fences, environments and marks of the end count as right, in every form of list."""

import csv
import json
import time
import zipfile
from pathlib import Path

import pytest

from hmerbench.evaluation.scoring.inputs import matched, read_predictions
from hmerbench.evaluation.scoring.score import evaluate
from hmerbench.evaluation.scoring.wrappers import on_one_line, unwrapped
from hmerbench.evaluation.symlg.formula import formula_of, tokenize
from tests.helpers.commands import hmerbench

TRUTH = {"a": "x ^ { 2 } + 1", "b": r"\frac { a } { b }", "c": "y _ { 1 } < 2"}
# A wrapper around {}, whether the official chain reads a file with it, and a row of a list.
WRAPPERS = [
    ("{}", False, True),
    ("${}$", True, True),
    ("$${}$$", True, True),
    ("$$ {} $$", True, True),
    ("**${}$**", True, True),
    ("The answer is ${}$.", True, True),
    ("$ {} $", False, False),
    (r"\[ {} \]", False, False),
    (r"\[{}\]", False, False),
    (r"\( {} \)", False, False),
    (r"**\( {} \)**", False, False),
    (r"$\[ {} \]$", False, False),
    ("```latex\n{}\n```", False, False),
    ("```\n{}\n```", False, False),
    ("`{}`", False, False),
    (r"\begin{{equation}} {} \end{{equation}}", False, True),
    (r"\begin {{ equation* }} {} \end {{ equation* }}", False, True),
    (r"$\begin{{equation}} {} \end{{equation}}$", True, True),
    (r"\begin{{displaymath}}{}\end{{displaymath}}", False, False),
    (r"\begin{{equation}} {} \tag{{1}} \end{{equation}}", False, False),
    (r"\begin{{align*}} {} \end{{align*}}", False, False),
    (r"\begin{{alignat}}{{2}} & {} \\ \end{{alignat}}", False, False),
    (r"$\begin{{aligned}} & {} \end{{aligned}}$", False, False),
    (r"$${} \tag {{ 3 . 1 }}$$", False, False),
    (r"{} \\", False, False),
    (r"{} \\ \\", False, False),
    ("{} <eol>", False, False),
    ("{}</s>", False, False),
    ("<s> {} </s> <pad> <pad>", False, False),
    ("<sos> {} <eos>", False, False),
    ("[CLS] {} [SEP]", False, False),
    ("{}<|im_end|>", False, False),
    ("<think> is it $x$? </think> {}", False, False),
    ("${} <eol>$", False, False),
]
# More of their kinds, and the names that they are counted by.
MORE = [
    ("```python\n{}\n```", ["code fence"]),
    ("```latex\n$$\n{}\n$$\n```", ["code fence", "$$"]),
    ("``{}``", ["code"]),
    ("*{}*", ["italics"]),
    ("_{}_", ["italics"]),
    ('"{}"', ["quotation marks"]),
    ("'{}'", ["quotation marks"]),
    ("“${}$”", ["quotation marks", "$"]),
    ("<latex>{}</latex>", ["element"]),
    ("[math] {} [/math]", ["element"]),
    ("＄{}＄", ["$"]),
    ("$$ {}", ["$$"]),
    ("{} $", ["$"]),
    (r"\[ {}", [r"\["]),
    (r"{} \)", [r"\)"]),
    ("```latex\n{}", ["```"]),
    (r"The formula is \( {} \).", ["sentences"]),
    ("Sure!\n```latex\n{}\n```\nBye.", ["sentences"]),
    ("$ {} $ .", ["sentences"]),
    ("LaTeX: {}", ["LaTeX:"]),
    ("Assistant: $${}$$", ["LaTeX:", "$$"]),
    ("**Answer:** {}", ["LaTeX:"]),
    ("### LaTeX\n{}", ["LaTeX:"]),
    ("<p>{}<br></p>", ["element", "</s>"]),
    ("````latex\n{}\n````", ["code fence"]),
    ('"""{}"""', ["quotation marks"]),
    (r"\boxed {{ {} }}", [r"\boxed"]),
    (r"$\boxed{{{}}}$", ["$", r"\boxed"]),
    (r"\begin{{dmath*}} {} \end{{dmath*}}", ["dmath"]),
    (r"\begin{{equation}} {} \notag \\ [2pt] \end{{equation}}", ["equation", r"\\", r"\tag"]),
    (r"{} \eqno ( 1 )", [r"\tag"]),
    (r"{} \newline", [r"\\"]),
    (r"{} \\[2pt]", [r"\\"]),
    ("<BOS> {} <EOS> <PAD>", ["<s>", "</s>"]),
    ("<pad> {} <pad>", ["<s>", "</s>"]),
    ("<|im_start|>assistant\n{}<|im_end|>", ["<s>", "</s>"]),
    ("\ufeff{}\u200b", ["invisible characters"]),
    ("\u2060${}$", ["invisible characters", "$"]),
]
FORMS = ("folder", "zip", "json", "jsonl", "mapping", "tokens", "csv", "tsv")


def written(folder: Path, form: str, texts: dict[str, str]) -> Path:
    """Predictions in one of FORMS."""
    rows: list[dict] = [{"id": key, "pred": text} for key, text in texts.items()]
    files = {f"{key}.txt": f"%{key}\n{text}" for key, text in texts.items()}
    path = folder / {"folder": "p", "mapping": "m.json", "tokens": "t.json"}.get(form, f"p.{form}")
    if form == "folder":
        path.mkdir()
        for name, text in files.items():
            (path / name).write_text(text)
    elif form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    elif form in ("csv", "tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ("id", "pred"), delimiter="\t" if form == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        listed = [row | {"pred": row["pred"].split()} for row in rows] if form == "tokens" else rows
        path.write_text(
            "\n".join(map(json.dumps, listed))
            if form == "jsonl"
            else json.dumps(texts if form == "mapping" else listed)
        )
    return path


@pytest.fixture
def truth(tmp_path: Path) -> str:
    (tmp_path / "mine/data/test").mkdir(parents=True)
    lines = (f"{key}\t{text}\n" for key, text in TRUTH.items())
    (tmp_path / "mine/data/test/caption.txt").write_text("".join(lines))
    return f"{tmp_path}/mine:test"


@pytest.mark.parametrize(("wrapper", "in_a_file", "in_a_list"), WRAPPERS)
def test_what_is_around_a_formula_costs_nothing(
    tmp_path: Path, truth: str, wrapper: str, in_a_file: bool, in_a_list: bool
):
    texts = {key: wrapper.format(text) for key, text in TRUTH.items()}
    for form in FORMS:
        filed = form in ("folder", "zip")
        bare = filed and wrapper == "{}"  # without a mark, a file has text, but no formula
        official = in_a_file if filed else in_a_list
        found = evaluate(written(tmp_path, form, texts), truth)
        assert found.score.exact == found.score.token_exact == (0 if bare else 3), form
        assert ("|wrap:removed|" in found.score.signature) == (not official and not bare), form
        told = any(note.startswith("3 of 3 predictions are wrapped") for note in found.notes)
        assert told == (wrapper != "{}" and not (filed and official and "equation" not in wrapper)), form


@pytest.mark.parametrize(
    "formula",
    [
        "a $5", r"x = \$ 5", "* * x * *", r"\left [ x \right ]", "[ x ]", "< s > x", "x > y >", "a <b> c", "` x",
        r"\begin { matrix } x & y \end { matrix }", r"\begin{aligned} x & = 1 \\ y & = 2 \end{aligned}", r"| x | \\ y",
        r"\begin{equation} x \end{equation} + \begin{equation} y \end{equation}", r"\tag { 1 }", r"\\",
        '" x "',
    ],
)  # fmt: skip
def test_what_is_no_wrapper_stays(tmp_path: Path, truth: str, formula: str):
    texts, _, _ = matched(written(tmp_path, "json", TRUTH | {"a": formula}), truth)
    assert texts["a"] == f"%a\n${' '.join(formula.split())}$" and not texts.removed


@pytest.mark.parametrize(("wrapper", "names"), MORE)
def test_wrappers_are_removed_by_their_kind(wrapper: str, names: list[str]):
    for text in TRUTH.values():
        formula, found = unwrapped(wrapper.format(text))
        assert formula.strip() == text and found == names


@pytest.mark.parametrize("name", ["gather*", "split", "alignedat"])
def test_only_alignat_has_a_number_of_columns(name: str):
    columns = "{ 2 }" if name == "alignedat" else ""
    line = on_one_line(rf"\begin{{{name}}}{columns} x ^ {{ 2 }} + y ^ {{ 3 }} \end{{{name}}}")
    assert line is not None and line[0].strip() == "x ^ { 2 } + y ^ { 3 }"


def test_wrappers_take_little_time_however_many():
    for text in (
        r"\boxed{" * 9999 + "}" * 9999,
        "x" + " <pad>" * 9999,
        r"\( " * 9999,
        "``` " * 9999,
        r"\\ " * 9999 + "x",
    ):
        start = time.process_time()
        unwrapped(text)
        assert time.process_time() - start < 5


def test_what_surrounds_most_predictions_is_told(tmp_path: Path, truth: str):
    texts = {key: f"> {text} ." for key, text in TRUTH.items()}
    found = evaluate(written(tmp_path, "json", texts), truth)
    begin, end = (note for note in found.notes if "captions do not" in note)
    assert begin.startswith("3 of 3 wrong predictions begin with > and their captions do not (a: > x ^ { 2 } + 1 .)")
    assert end.startswith("3 of 3 wrong predictions end with . and")
    right = evaluate(written(tmp_path, "jsonl", TRUTH | {"a": "x ."}), truth)
    assert not [note for note in right.notes if "captions do not" in note]


def test_no_note_is_taken_of_what_formulas_often_begin_or_end_with(tmp_path: Path, truth: str):
    usual = TRUTH["a"].split()[0]
    found = evaluate(written(tmp_path, "json", dict.fromkeys(TRUTH, f"{usual} _ {{ {usual} }}")), truth)
    assert found.score.exact == 0 and not [note for note in found.notes if "captions do not" in note]


def test_a_comment_is_no_formula(tmp_path: Path, truth: str):
    found = evaluate(written(tmp_path, "json", TRUTH | {"a": "% x"}), truth)
    assert any(note.startswith("1 of 3 predictions have text but no formula (a, ...)") for note in found.notes)


@pytest.mark.parametrize("form", ["folder", "json", "csv"])
@pytest.mark.parametrize(("wrapper", "raw"), [("{}", False), ("```\n{}\n```", False), ("${}$", True)])
def test_a_comment_ends_with_its_line(tmp_path: Path, truth: str, form: str, wrapper: str, raw: bool):
    texts = {key: wrapper.format(" % so\n".join(text.rsplit(" ", 1))) for key, text in TRUTH.items()}
    texts = {key: f"${text}$" if (form, wrapper) == ("folder", "{}") else text for key, text in texts.items()}
    assert evaluate(written(tmp_path, form, texts), truth, raw=raw).score.exact == 3


@pytest.mark.parametrize("said", ["I am 95% sure: ${}$\nwith 5 \\% of doubt", "### What I read (as LaTeX)\n{}"])
def test_a_percent_sign_among_sentences_is_no_comment_and_a_heading_may_have_any_characters(
    tmp_path: Path, truth: str, said: str
):
    texts = {key: said.format(text) for key, text in TRUTH.items()}
    assert evaluate(written(tmp_path, "json", texts), truth).score.exact == 3


def test_two_formulas_are_not_one():
    for text in ("$x$ and $y$", r"\( x \) \( y \)", r"\[ x \] \[ y \]", "`x` `y`", r"\( x \] y"):
        assert unwrapped(text) == (text, [])


def test_an_environment_stays_where_the_truth_has_a_table(tmp_path: Path, truth: str):
    table = r"\begin { aligned } x & = 1 \end { aligned }"
    caption = tmp_path / "mine/data/test/caption.txt"
    caption.write_text(caption.read_text() + f"t\t{table}\n")
    found = evaluate(written(tmp_path, "json", TRUTH | {"t": table}), truth)
    assert found.score.exact == 4 and "|wrap:" not in found.score.signature


def test_names_and_columns_of_tables_stay_whole_in_tokens():
    raw = r"\begin{array}{cc}12\\x&y\end{array}\begin{pmatrix*}a\end{pmatrix*}"
    expected = r"\begin { array } { cc } 1 2 \\ x & y \end { array } \begin { pmatrix* } a \end { pmatrix* }"
    assert tokenize(raw) == expected.split()


def test_a_folder_made_of_a_list_is_scored_alike(tmp_path: Path, truth: str):
    listed = read_predictions(written(tmp_path, "json", {key: f"$$ {text} $$" for key, text in TRUTH.items()}))
    (tmp_path / "made").mkdir()
    for key, text in listed.items():
        (tmp_path / f"made/{key}.txt").write_text(text)
    assert [formula_of(text) for text in listed.values()] == list(TRUTH.values())
    assert evaluate(tmp_path / "made", truth).score.exact == 3


@pytest.mark.parametrize("command", ["score", "compare", "editions", "errors"])
def test_every_command_tells_why_predictions_do_not_convert(tmp_path: Path, truth: str, command: str):
    path = written(tmp_path, "json", {"a": "x }", "b": r"\foo x", "c": r"y \foo"})
    named = {"compare": [path, path], "errors": ["--predictions", path, "--out", tmp_path / "out"]}
    done = hmerbench(command, *named.get(command, ["--predictions", path]), "--ground-truth", truth)
    assert done.returncode == 0
    reasons = r"3 of 3 predictions do not convert: unknown or misplaced command \foo (2), unexpected } (1)"
    assert reasons in done.stderr


def test_the_most_frequent_reasons_come_first_and_the_rest_is_counted(tmp_path: Path, truth: str):
    caption = tmp_path / "mine/data/test/caption.txt"
    caption.write_text("".join(f"e{k}\tx\n" for k in range(9)))
    texts = {
        f"e{k}": rf"\{name} x" for k, name in enumerate(["foo", "foo", "foo", "baz", "baz", "uu", "vv", "ww", "zz"])
    }
    (note,) = [n for n in evaluate(written(tmp_path, "json", texts), truth).notes if "convert" in n]
    assert note.startswith(r"9 of 9 predictions do not convert: unknown or misplaced command \foo (3), unknown or")
    assert note.endswith(", 1 other reason")
