"""Properties of the conversion and of the comparison, on random expressions; and single rules of the conversion."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hmerbench.evaluation import InputError, symlg
from hmerbench.evaluation.lgeval import metrics
from hmerbench.evaluation.lgeval.label_graph import read
from hmerbench.evaluation.symlg import EMPTY_GRAPH, UNREADABLE, SymLG, Unconverted
from tests.helpers.graphs import content
from tests.helpers.yardstick import lines_run, loops

WORDS = r"""
a b x 1 2 + - = ( ) [ ] | ' , . @ % $ & { } { } { } { } _ ^ _ ^ \frac \frac \sqrt \sum \lim \limits \nolimits \{ \} \sin
\alpha \prime \left \right \quad \mathrm \overline \vec \overset \operatorname \displaystyle \text \foo 12.5 \dfrac
"""
TOKENS = st.sampled_from(WORDS.split())
# Random well-formed expressions, built from the grammar.
ATOMS = st.sampled_from([*"abx12+-=(),", r"\sum", r"\lim", r"\pi", r"\prime"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map(" ".join),
        inner.map("{{ {} }}".format),
        st.tuples(ATOMS, inner).map(lambda p: f"{p[0]} ^ {{ {p[1]} }}"),
        st.tuples(ATOMS, inner, inner).map(lambda p: f"{p[0]} _ {{ {p[1]} }} ^ {{ {p[2]} }}"),
        st.tuples(inner, inner).map(lambda p: f"\\frac {{ {p[0]} }} {{ {p[1]} }}"),
        inner.map("\\sqrt {{ {} }}".format),
        st.tuples(inner, inner).map(lambda p: f"\\sqrt [ {p[0]} ] {{ {p[1]} }}"),
        inner.map("\\sum \\limits _ {{ {} }}".format),
    ),
    max_leaves=12,
)


def convert(text: str | list[str]) -> SymLG | None:
    try:
        return symlg.from_latex(text)
    except Unconverted as reason:
        assert str(reason) and "\n" not in str(reason)
        return None


def labels(text: str) -> dict[str, set[str]]:
    return symlg.from_latex(text).nodes


@settings(max_examples=max(500, settings().max_examples))
@given(st.lists(TOKENS, max_size=25))
def test_conversion_of_token_lists_is_total_and_deterministic(tokens: list[str]):
    assert convert(tokens) == convert(tokens) == convert(" ".join(tokens))


@settings(max_examples=max(500, settings().max_examples))
@given(st.text())
@example("\\\n")  # an escaped end of line, quoted by the reason
@example("\\begin{a\nb} x")
def test_conversion_of_any_text_is_total(text: str):
    convert(text)


@given(EXPRESSIONS)
def test_a_well_formed_expression_converts_and_equals_itself(text: str):
    graph = symlg.from_latex(text)
    comparison = metrics.compare_graphs(graph, graph)
    values = comparison.metrics
    assert not comparison.diff()
    assert [values[name] for name in ("D_B", "D_C", "D_L", "D_E(%)", "dPairs", "ClassError")] == [0] * 6
    assert all(values[name] == 1 for name in metrics.FIELDS[-5:])
    assert values["nodeCorrect"] == values["nNodes"] == values["CorrectSegments"]
    assert values["CorrectSegRels"] == values["nSegRelEdges"] == values["dSegRelEdges"]


@given(EXPRESSIONS)
def test_braces_around_an_expression_change_nothing(text: str):
    assert content(symlg.from_latex(f"{{ {{ {text} }} }}")) == content(symlg.from_latex(text))


@given(EXPRESSIONS)
def test_writing_and_reading_gives_the_same_graph(text: str):
    graph = symlg.from_latex(text)
    written = symlg.lg_text(graph, "id")
    again = read(written)
    assert (again.nodes, again.edges) == (graph.nodes, graph.edges)
    assert symlg.with_paths(written) == written


@given(EXPRESSIONS, EXPRESSIONS)
def test_error_count_is_the_set_formula_and_symmetric(one: str, other: str):
    a, b = symlg.from_latex(one), symlg.from_latex(other)
    values = metrics.compare_graphs(a, b).metrics
    nodes = sum(
        not (a.nodes.get(path, {"ABSENT"}) & b.nodes.get(path, {"ABSENT"})) for path in a.nodes.keys() | b.nodes.keys()
    )
    edges = sum(not (a.edges.get(edge, {"_"}) & b.edges.get(edge, {"_"})) for edge in a.edges.keys() | b.edges.keys())
    assert (values["D_C"], values["D_L"], values["D_B"]) == (nodes, edges, nodes + edges)
    assert metrics.compare_graphs(b, a).metrics["D_B"] == values["D_B"]
    assert (values["D_B"] == 0) == (not metrics.compare_graphs(a, b).diff())
    assert values["CorrectSegmentsAndClass"] <= values["CorrectSegments"] <= values["nSeg"]
    assert 0 <= values["nodeCorrect"] <= values["nNodes"]


@given(EXPRESSIONS)
def test_an_empty_prediction_costs_every_symbol_and_relation(text: str):
    graph = symlg.from_latex(text)
    values = metrics.compare_graphs(EMPTY_GRAPH, graph).metrics
    assert values["D_B"] == len(graph.nodes) + len(graph.edges)
    assert values["detectedSeg"] == 0


@given(EXPRESSIONS)
def test_no_prediction_matches_a_truth_without_symlg(text: str):
    assert metrics.compare_graphs(symlg.from_latex(text), UNREADABLE).metrics["D_B"] > 3
    assert metrics.compare_graphs(EMPTY_GRAPH, UNREADABLE).metrics["D_B"] > 3


@given(st.lists(st.integers(0, 12), min_size=1))
def test_histogram_counts_and_cumulates(errors: list[int]):
    *_, counted, cumulated = (list(map(int, line.split()[2:])) for line in metrics.histogram(errors)[2:])
    assert counted == [errors.count(k) for k in range(6)] + [sum(error > 5 for error in errors)]
    assert cumulated == [sum(error <= k for error in errors) for k in range(6)] + [len(errors)]


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000 + "x" + "}" * 100_000,
        " ".join(["x"] * 1_000_000),
        "{ " * 4_000 + "x" + " }" * 4_000,
        r"\sqrt { " * 3_000 + "x" + " }" * 3_000,
        r"\frac { " * 1_000 + "x" + " } { y }" * 1_000,
        "x ^ " * 4_900 + "x",
        "x _ a ^ b " * 1_900,
        r"\left ( " * 4_000,
        r"\sqrt " * 9_000,
        "{ a { } " * 2_000 + "} " * 2_000,
        r"\frac " * 4_000 + "1" * 100_000,
    ],
    ids=lambda text: f"{text[:12]}...{len(text)}",
)
def test_deep_and_long_expressions_take_linear_time(text: str):
    assert lines_run(lambda: convert(text)) < 100 * len(text)  # 23 to 43 per character; in quadratic time, thousands
    assert loops(lambda: convert(text)) < 1000  # what happens within a line


def test_a_million_tokens_in_a_list_are_refused_unread():
    tokens = ["x"] * 1_000_000
    assert convert(tokens) is None
    assert lines_run(lambda: convert(tokens)) < 1000  # refused by their length


# --- single rules, from the specification of the official conversion ---------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x _ a ^ b", {"O": "x", "OSub": "a", "OSup": "b"}),
        ("x ^ b _ a", {"O": "x", "OSub": "a", "OSup": "b"}),
        ("x ^ a b", {"O": "x", "OSup": "a", "OR": "b"}),
        ("x ^ 2 ^ 3", {"O": "x", "OSup": "2", "OSupSup": "3"}),
        ("x ^ ^ b", {"O": "x", "OSup": "", "OSupSup": "b"}),
        ("{ a + b } ^ 2", {"O": "a", "OR": "+", "ORR": "b", "ORRSup": "2"}),
        ("{ { a b } ^ 2 } _ 3 c", {"O": "a", "OR": "b", "ORSup": "2", "ORSub": "3", "ORR": "c"}),
        ("{ a + b } _ 1 ^ 2", {"O": "a", "OR": "+", "ORR": "b", "ORRSub": "1", "ORRSup": "2"}),
        (r"\frac X 2", {"O": "-", "OAbove": "X", "OBelow": "2"}),
        ("\\operatorname { a } % b\nc", {"O": "a", "OR": "c"}),
        (r"\frac 1 2 3", {"O": "-", "OAbove": "1", "OBelow": "2", "OR": "3"}),
        (r"\frac 12 3", {"O": "-", "OAbove": "1", "OBelow": "2", "OR": "3"}),
        (r"\frac [ a ] b", {"O": "-", "OAbove": "a", "OBelow": "b"}),
        (r"\sqrt [ n ] { a b }", {"O": r"\sqrt", "OInside": "a", "OInsideR": "b", "OAbove": "n"}),
        (r"\surd { x }", {"O": r"\sqrt", "OInside": "x"}),
        (r"\frac \sqrt { b }", {"O": "-", "OAbove": "√", "OBelow": "b"}),
        (r"\sum _ a ^ b", {"O": r"\sum", "OSub": "a", "OSup": "b"}),
        (r"\sum \limits ^ b _ a", {"O": r"\sum", "OBelow": "a", "OAbove": "b"}),
        (r"x \limits _ a", {"O": "x", "OBelow": "a"}),
        (r"x \limits ^ a", {"O": "x", "OAbove": "a"}),
        (r"x \limits y", {"O": "x", "OR": "y"}),
        (r"x \nolimits _ a", {"O": "x", "OSub": "a"}),
        (r"\left ( x \right ) ^ 2", {"O": "(", "OR": "x", "ORR": ")", "ORRSup": "2"}),
        (r"{ \left ( x } y", {"O": "(", "OR": "x", "ORR": "y"}),
        (r"\left . x \right |", {"O": "x", "OR": "|"}),
        ("a { } b", {"O": "a", "OR": "b"}),
        ("v { } ^ 2", {"O": "v", "OR": "2"}),
        ("{ a { } } ^ 2", {"O": "a", "OR": "2"}),
        (r"a \quad b ~ c \, d", {"O": "a", "OR": "b", "ORR": "c", "ORRR": "d"}),
        (r"\mathrm { a b } c", {"O": "c"}),
        (r"x ^ \text { y { z } } w", {"O": "x", "OR": "w"}),
        (r"\mathrm { a } ^ b c", {"O": "b", "OR": "c"}),
        (r"a , b", {"O": "a", "OR": "COMMA", "ORR": "b"}),
        (r"\operatorname { , , }", {"O": "COMMACOMMA"}),
        ("f ' ''", {"O": "f", "OR": r"\prime", "ORR": "″"}),
        ("12.5 x", {"O": "12.5", "OR": "x"}),
        ("1.5 .5 .", {"O": "1.5", "OR": ".5", "ORR": "."}),
        (r"x _ a ^ \operatorname { b }", {"O": "x", "OSub": "a", "OSubSup": "b"}),
        (r"\lt \le \to \ne - \Gamma", dict(zip(["O", "OR", "ORR", "ORRR", "ORRRR", "ORRRRR"],
            [r"\lt", r"\leq", r"\rightarrow", r"\neq", "-", r"\gamma"], strict=True))),
        (r"\operatorname { l i m } _ x", {"O": r"\lim", "OSub": "x"}),
        (r"x _ \operatorname { a } ^ b", {"O": "x", "OSub": "a", "OSubSup": "b"}),
        (r"\operatorname * { l i m } _ x", {"O": r"\lim", "OSub": "x"}),
        (r"\operatorname [ a b ] x", {"O": "ab", "OR": "x"}),
        (r"\displaystyle x", {"O": "x"}),
        (r"\vec { x } y", {"O": "x", "OAbove": "\u20d7", "OR": "y"}),
        (r"\overset a b", {"O": "b", "OAbove": "a"}),
        (r"\underset a b", {"O": "b", "OBelow": "a"}),
        (r"\overset { \overset a b } c", {"O": "c", "OAbove": "b", "OAboveAbove": "a"}),
        (r"\frac \quad b c", {"O": "-", "OAbove": "b", "OR": "c"}),
        (r"\frac { \quad } b", {"O": "-", "OAbove": "b"}),
        (r"\frac { } b", {"O": "-", "OBelow": "b"}),
        (r"x y \mathrm { a ^ b } c", {"O": "x", "OR": "y", "ORR": "c"}),
        (r"x ^ 2 \mathrm { a } y", {"O": "x", "OSup": "2", "OR": "y"}),
        (r"x _ \displaystyle a", {"O": "x", "OSub": "a"}),
        ("a { } ^ { } b", {"O": "a", "OR": "b"}),
        (r"a \quad ^ \quad b", {"O": "a", "OR": "b"}),
        (r"a \big ( x", {"O": "a", "OR": "(", "ORR": "x"}),
        (r"\ensuremath { x } y", {"O": "x", "OR": "y"}),
        (r"\phantom { x } y", {"O": "y"}),
        (r"\dfrac { x } { z } y", {"O": "y"}),
        ("a % b", {"O": "a"}),
        ("x % b\n_ 2", {"O": "x", "OSub": "2"}),
        ("% b\na % b\nc d", {"O": "a", "OR": "c", "ORR": "d"}),
        ("{ }", {}),
        ("α ≤", {"O": r"\alpha", "OR": r"\leq"}),
        ("@ x".replace("@", r"\$"), {"O": "$", "OR": "x"}),
        (r"\sqrt [ n ] [ y", {"O": r"\sqrt", "OAbove": "n", "OInside": "[", "OR": "y"}),
        (r"\frac [ a b", {"O": "-", "OAbove": "[", "OBelow": "a", "OR": "b"}),
        ("a $5", {"O": "5"}),  # a dollar ends the formula by the rules of Markdown
    ],
)  # fmt: skip
def test_rule(text: str, expected: dict[str, str]):
    assert labels(text) == {path: {label} for path, label in expected.items()}


def test_two_scripts_in_one_place_share_a_node():
    assert labels("{ x ^ 2 } ^ 3") == {"O": {"x"}, "OSup": {"2", "3"}}


def test_scripts_of_an_empty_group_start_a_second_root():
    assert labels("v { } ^ 2 = a") == {"O": {"v", "="}, "OR": {"2", "a"}}
    assert labels("{ } _ 1 ^ 2") == {"O": {"1", "2"}}
    assert labels("{ b { a { } } } ^ 2") == {"O": {"b"}, "OR": {"a"}, "ORR": {"2"}}
    for last in ("{ { } a } ^ 2", "{ { } { { } a } } ^ 2", "{ { { } } { } a } ^ 2"):  # not at the end: left out
        assert labels(last) == {"O": {"a"}, "OSup": {"2"}}
    assert labels("{ a { } } _ 1 ^ 2") == {"O": {"a", "1", "2"}}


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\sqrt { a b c }", {("O", "OInside"), ("O", "OInsideR")}),
        (r"\sqrt { { a b } c }", {("O", "OInside"), ("O", "OInsideR")}),
        (r"\sqrt { a }", {("O", "OInside")}),
        (r"\sqrt { a ^ 2 }", {("O", "OInside")}),
        (r"\sqrt { { a b } ^ 2 }", {("O", "OInside"), ("O", "OInsideR")}),
        (r"\sqrt { { a b } _ 1 c }", {("O", "OInside"), ("O", "OInsideR")}),
        (r"\sqrt { { a b } \limits _ 1 c }", {("O", "OInside"), ("O", "OInsideRR")}),
        (r"\sqrt { { a b } ^ \quad c }", {("O", "OInside"), ("O", "OInsideRR")}),
        (r"\sqrt { { } a }", {("O", "OInside")}),
        (r"\sqrt \quad x", set()),
        (r"\sqrt { { a b } _ 1 ^ 2 c }", {("O", "OInside"), ("O", "OInsideRR")}),
        (r"\sqrt [ n ] { a b }", {("O", "OInside")}),
        (r"\sqrt { { } ^ 2 b }", {("O", "OInside")}),
        (r"\sqrt { }", set()),
    ],
)
def test_a_root_is_inside_related_to_its_second_member_too(text: str, inside: set[tuple[str, str]]):
    found = symlg.from_latex(text).edges
    assert {edge for edge, words in found.items() if "Inside" in words} == inside


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("{ a", "ends too early"),
        ("a }", "unexpected }"),
        ("x ^", "ends too early"),
        ("x _ }", "unexpected }"),
        (r"\frac { a }", "ends too early"),
        (r"\sqrt", "ends too early"),
        (r"\sqrt [ 3 { x }", "ends too early"),
        (r"\frac } x", "unexpected } at token 2"),
        (r"\frac \foo x", r"command \foo at token 2"),
        ("\\frac % 1\n2 3", "unexpected % 1 at token 2"),
        (r"\big x", r"command \big at token 1"),
        (r"\foo x", r"unknown or misplaced command \foo at token 1"),
        ("\\é x", "unexpected \\é at token 1"),
        (r"\ab x", r"command \ab at token 1"),
        (r"a \" b", r"unexpected \" at token 2"),
        (r"\limits x", r"\limits"),
        (r"x _ 1 ^ 2 \limits", r"\limits"),
        (r"\right ) x", r"\right"),
        (r"\left x", "unexpected x"),
        (r"\mathrm [ x ]", "unexpected ["),
        ("a & b", "unexpected & at token 2"),
        ('a " b', 'unexpected "'),
        (r"\frac \surd { b }", r"command \surd at token 2"),
        ("a $ b", "no $...$ formula"),
        (r"\begin { matrix }", "ends too early"),
        (r"\text { a", "ends too early"),
        (r"\mathrm { a }", "nothing is left"),
        (r"\quad", "nothing is left"),
        (r"\overline { x }", "label"),
        (r"\cdotp", "label"),
        (r"x y \operatorname { a ^ b }", "operatorname"),
        ("x " * 10_001, "10001 tokens"),
        ("x" * 200_001, "200001 characters"),
    ],
)
def test_reason(text: str, reason: str):
    with pytest.raises(Unconverted, match=re.escape(reason)):
        symlg.from_latex(text)


def test_expressions_at_the_limits_convert():
    assert len(symlg.from_latex("x " * 10_000).objects) == 10_000
    assert len(symlg.from_latex("1" * 200_000).objects) == 1


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("%id\n$x ^ 2$", "x ^ 2"),
        ("%id\n%author\n$x$", "x"),
        ("%$5$\n$x$", "x"),
        ("%id\n$\\sin\nx$", "\\sin\nx"),
        ("text $x$ and $y$", "x"),
        ("%id\r\n$x$\r\n", "x"),
        (r"$a \$ b$", r"a \$ b"),
        ("$5 $x$", "x"),
        (r"\$a$b$", "b"),
    ],
)
def test_formula_in_a_prediction_file(text: str, formula: str):
    assert symlg.formula_in(text) == formula


@pytest.mark.parametrize("text", ["", "%id", "%id\n$$", "$ x$", "$x $", "$x$5", "x", "$x"])
def test_no_formula_in_a_prediction_file(text: str):
    with pytest.raises(Unconverted):
        symlg.formula_in(text)


def test_a_formula_is_searched_once():
    def search():
        with pytest.raises(Unconverted):
            symlg.formula_in(r"\$" * 90_000)

    assert loops(search) < 200  # below one; searching anew from every place would take thousands


# --- reading .lg ------------------------------------------------------------------------------------------


def test_lg_corner_cases():
    graph = read(
        "O, a_1, a, 1.0, O\nN, OR, b, 1.0\n  # comment\n   \nEO, a_1, zz, Right, 1.0\nO, _2, , 1.0, OSub\n"
        "R, a_1, _2, Sub, 1.0\nR, zz, a_1, Right, 1.0\nN, ORR, c"
    )
    assert graph.nodes == {"O": {"a"}, "OR": {"b"}, "OSub": {""}, "ORR": {"c"}}
    assert graph.edges == {("O", "OSub"): {"Sub"}}  # the relation of an unknown object is left out


def test_symbols_of_one_path_are_one_node_without_a_relation_to_itself():
    graph = read("O, a, a, 1.0, O\nO, b, b, 1.0, O\nR, a, b, Right, 1.0")
    assert (graph.nodes, graph.edges) == ({"O": {"a", "b"}}, {})
    one = read("O, a, a, 1.0, O")  # without INTER, a label that only one of the graphs has is confused with none
    assert metrics.compare_graphs(graph, one, inter=False).diff() == "*N,O,b,1.0,:vs:,_,1.0\n"
    assert metrics.compare_graphs(one, graph, inter=False).diff() == "*N,O,_,1.0,:vs:,b,1.0\n"


def test_the_official_text_format():
    assert symlg.lg_text(symlg.from_latex([r"\sin", "x", "^", "2"]), "id") == (
        "# IUD, id\n# Objects(3):\nO, \\sin_1, \\sin, 1.0, O\nO, x_2, x, 1.0, OR\nO, 2_3, 2, 1.0, ORSup\n\n"
        "# Relations from SRT:\nR, \\sin_1, x_2, Right, 1.0\nR, x_2, 2_3, Sup, 1.0\n"
    )
    assert "\nO, _1, \\sqrt, 1.0, O\n" in symlg.lg_text(symlg.from_latex(r"\sqrt x"), "id")
    relations = symlg.lg_text(symlg.from_latex(r"\frac b a c"), "id").splitlines()[-3:]  # sorted by the ids
    assert relations == ["R, _1, a_3, Below, 1.0", "R, _1, b_2, Above, 1.0", "R, _1, c_4, Right, 1.0"]


def test_paths_from_relations():
    head = "O, s, \\sqrt, 1.0, 1, 2\nO, a, a, 1.0, 3\nO, b, b, 1.0\nO, c, c\n"
    paths = "O, s, \\sqrt, 1.0, O\nO, a, a, 1.0, OInside\nO, b, b, 1.0, OInsideR\nO, c, c\n"
    inside, right = "R, s, b, Inside, 1.0\nEO, s, a, Inside, 1.0\n", "R, a, b, Right, 1.0\n"
    odd = "R, c, b, Right\n"  # incomplete, and left as it is
    for tail in (inside + right + odd, right + inside + odd):  # Right decides, wherever it stands
        assert symlg.with_paths(head + tail) == paths + tail
    with pytest.raises(InputError, match="form a cycle"):
        symlg.with_paths("O, a, a, 1.0, 1\nO, b, b, 1.0, 2\nR, a, b, Right, 1.0\nR, b, a, Right, 1.0")
    symlg.with_paths("".join(f"R, {k}, {k + 1}, Right, 1.0\n" for k in range(10_000)))
    with pytest.raises(InputError, match="more than 10000 relations"):
        symlg.with_paths("".join(f"R, {k}, {k + 1}, Right, 1.0\n" for k in range(10_001)))


def test_summary_of_all_right_and_of_nothing_found():
    graph = symlg.from_latex("x ^ 2 + 1")
    right = metrics.summary([metrics.compare_graphs(graph, graph).metrics], "", "").splitlines()
    assert "   Objects    100.00    100.00    100.00         4         4         0         4         0" in right
    assert " Relations    100.00    100.00    100.00         3         3         0         3         0" in right
    nothing = metrics.summary([metrics.compare_graphs(EMPTY_GRAPH, graph).metrics], "", "").splitlines()
    assert "   Objects      0.00    100.00      0.00         4         0         4         0         0" in nothing
    assert " Relations      0.00    100.00      0.00         3         0         3         0         0" in nothing
    assert " Class/Det   (Empty)" + " " * 20 + "         0         0" in nothing
    assert [line.split()[1] for line in nothing if line.startswith(" Class/Det")] == ["(Empty)"] * 5
    more = metrics.compare_graphs(symlg.from_latex("x y"), symlg.from_latex("x")).metrics
    assert re.search(r"\n Relations +100\.00 +0\.00 +0\.00 +0 +0 +0 +1 +1\n", metrics.summary([more], "", ""))
    wrong = metrics.compare_graphs(symlg.from_latex("x _ 2"), symlg.from_latex("x ^ 2")).metrics
    assert re.search(r"\n Relations +0\.00 +0\.00 +0 +1 +0 +1 +1 +1\n", metrics.summary([wrong], "", ""))


def test_two_empty_graphs_agree():
    values = metrics.compare_graphs(EMPTY_GRAPH, EMPTY_GRAPH).metrics
    assert not any(values[name] for name in metrics.FIELDS[:-5]) and all(values[name] for name in metrics.FIELDS[-5:])


def test_rows_of_differences_are_in_order():
    comparison = metrics.compare_graphs(symlg.from_latex("a b c d e f g"), symlg.from_latex("x _ a ^ { b c d e f }"))
    assert comparison.nodes == sorted(comparison.nodes) and len(comparison.nodes) > 9
    assert comparison.edges == sorted(comparison.edges) and len(comparison.edges) > 9
