"""The table of pandoc's symbols: derived again where pandoc 2.17 is installed, and our reading beside pandoc's own."""

import pytest

from hmerbench.evaluation.symlg import Unconverted, from_latex, latex_commands, rules
from hmerbench.evaluation.symlg.mathml import from_mathml
from tests.helpers.graphs import content
from tests.helpers.pandoc import derive, installed, mathml

needs_pandoc = pytest.mark.skipif(installed() is None, reason="no pandoc 2.17 (apt-get install pandoc)")
COMMANDS = [name for name in latex_commands.SYMBOLS if name.startswith("\\")]


def content_of(convert, *given) -> object:
    try:
        return content(convert(*given))
    except Unconverted:
        return None


def ours(latex: str, reading: str = "pandoc-2.17") -> object:
    return content_of(from_latex, latex, rules(reading))


@needs_pandoc
def test_the_table_is_what_pandoc_says():
    assert latex_commands.table() == derive()


@needs_pandoc
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("%s _ a ^ %s + b", COMMANDS),
        (r"\frac %s b \hat %s", COMMANDS),
        (r"\left %s a \right . \big %s", COMMANDS),
        (r"%s x + %s { y }", latex_commands.ACCENTS),
    ],
)
def test_every_command_is_read_as_pandoc_reads_it(pattern: str, names):
    formulas = [pattern.replace("%s", name) for name in names]
    theirs = [found and content_of(from_mathml, f"<math>{found}</math>") for found in mathml(formulas)]
    wrong = [
        (text, expected) for text, expected in zip(formulas, theirs, strict=True) if ours(text) != (expected or None)
    ]
    assert len(formulas) > 15 and not wrong


@pytest.mark.parametrize(
    ("latex", "newer", "older"),
    [
        (r"a \models b", {"⊨"}, {"⊨"}),
        (r"a \sharp b", {"♯"}, {"♯"}),
        (r"a \hdots b", {r"\ldots"}, None),
        (r"a \circledcirc b", {"⊚"}, {"◎"}),
        ("a @ b", {"@"}, {"@"}),
    ],
)
def test_a_command_in_both_readings(latex: str, newer: set[str], older: set[str] | None):
    for reading, expected in (("pandoc-2.17", newer), ("pandoc-1.19", older)):
        if expected is None:
            assert ours(latex, reading) is None
        else:
            assert from_latex(latex, rules(reading)).nodes["OR"] == expected
