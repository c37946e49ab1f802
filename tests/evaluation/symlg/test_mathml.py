"""MathML of any kind becomes the graph that LaTeX would, or is refused with a reason."""

from pathlib import Path

import pytest

from hmerbench.evaluation import symlg
from hmerbench.evaluation.lgeval import label_graph
from hmerbench.evaluation.symlg import Unconverted
from hmerbench.evaluation.symlg.mathml import from_mathml
from tests.helpers.commands import script
from tests.helpers.graphs import content
from tests.helpers.yardstick import loops

MATH = "<html><math xmlns='http://www.w3.org/1998/Math/MathML'>{}</math></html>"


@pytest.mark.parametrize(
    ("body", "latex"),
    [
        ("<mi>x</mi><mo>&minus;</mo><mn>1</mn>", "x - 1"),
        ("<semantics><msup><mi>x</mi><mn>2</mn></msup><annotation>x^2</annotation></semantics>", "x ^ 2"),
        ("<msqrt><mi>a</mi><mi>b</mi></msqrt>", r"\sqrt { a b }"),
        ("<mroot><mi>a</mi><mi>n</mi></mroot>", r"\sqrt [ n ] { a }"),
        ("<mrow><mfrac><mi>a</mi><mrow><mi>b</mi><mo>&lt;</mo><mi>c</mi></mrow></mfrac></mrow>", r"\frac a { b < c }"),
        ("<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover>", r"\sum \limits _ i ^ n"),
        ("<mrow><mtext>if</mtext><mi>lim</mi></mrow>", r"\lim"),
        ("<mrow></mrow>", "{ }"),
        ("<mi>a</mi><mi>b</mi>", "a b"),
        ("<msqrt></msqrt><mi>b</mi>", r"\sqrt { } b"),
        ("<mroot><mrow><mi>a</mi><mi>b</mi></mrow><mi>n</mi></mroot>", r"\sqrt [ n ] { a b }"),
        *((f"<{tag}>1<mi>2</mi></{tag}>", "12") for tag in ("mi", "mo", "mn")),
        ("<!-- a --><?b c?><MI>x</MI>", "x"),
        ("<mi>a</mi>" * 9_999, "a " * 9_999),
    ],
)  # fmt: skip
def test_mathml(body: str, latex: str):
    assert content(from_mathml(MATH.format(body))) == content(symlg.from_latex(latex))


@pytest.mark.parametrize(
    "text",
    [
        "no math here",
        MATH.format("<mi>x</mi"),
        MATH.format("<mtext>a</mtext>"),
        MATH.format("<semantics><mstyle><mi>a</mi></mstyle><annotation>a</annotation></semantics>"),
        MATH.format("&bomb;"),
        MATH.format("<mi>\ud800</mi>"),
        MATH.format(""),
        MATH.format("<mi>a</mi>" * 10_001),
        "<math>" + "<mrow>" * 50_000 + "</mrow>" * 50_000 + "</math>",
        "<math><!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><mi>&b;</mi></math>",
        "<?xml version='1.0'?><!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><math><mi>&a;</mi></math>",
    ],
    ids=range(11),
)
def test_hostile_mathml_is_refused_with_a_reason(text: str):
    with pytest.raises(Unconverted) as caught:
        from_mathml(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", ["<mtr><mi>a</mi></mtr>", "<mtable><mi>a</mi></mtable>", "<mtable></mtable>"])
def test_broken_matrices_convert(body: str):
    assert from_mathml(MATH.format(body)).objects


@pytest.mark.parametrize(
    ("body", "labels"),
    [
        ("<mi>a\n  b</mi>", {"a b"}),
        ("<mn>1,234,567</mn>", {"1COMMA234COMMA567"}),
        ("<mo>&LT;</mo>", {r"\lt"}),
        ("<mi>a</mi><mo>&amp;</mo><mi>b</mi>", {"a"}),  # the official tool reads nothing from the ampersand on
    ],
)
def test_labels_of_mathml_fit_in_a_line(body: str, labels: set[str]):
    graph = from_mathml(MATH.format(body))
    assert graph.nodes == {"O": labels}
    again = label_graph.read(symlg.lg_text(graph, "id"))
    assert (again.nodes, again.edges) == (graph.nodes, graph.edges)


def test_unfinished_mathml_is_searched_once():
    def search():
        with pytest.raises(Unconverted, match="no <math>"):
            from_mathml("<math>" * 300_000)

    assert loops(search) < 200  # below one; searching anew from every place would take thousands


def test_mml2symlg(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.mml").write_text(MATH.format("<mi>x</mi>"))
    (tmp_path / "in/b.mml").write_text("<math>")
    done = script("mml2symlg", "in", "out", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 files, 1 converted to out\n")
    assert "O, x_1, x, 1.0, O" in (tmp_path / "out/a.lg").read_text()
