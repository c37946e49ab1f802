# ruff: noqa: SIM905  (word tables read better as text)
"""What each LaTeX command is in MathML, as pandoc writes it, and the symLG labels of MathML's characters and names."""

from importlib import resources
from typing import NamedTuple


def table() -> dict[str, str]:
    """The character or name of every command that pandoc 2.17 reads as one symbol (derive_symbols.py made the file)."""
    text = resources.files("hmerbench.evaluation.symlg").joinpath("pandoc_symbols.tsv").read_text(encoding="utf-8")
    return dict(line.split("\t") for line in text.splitlines())


_DERIVED = table()
_ROOT = _DERIVED.pop(r"\sqrt")  # a symbol only as an argument without braces
# What may follow \left and \big.
_FENCES = (
    r"\{ \} \lbrack \lbrace \rbrack \rbrace \| \vert \lvert \rvert \Vert \lVert \rVert \langle \rangle \lfloor \rfloor "
    r"\lceil \rceil \llbracket \rrbracket \ulcorner \urcorner"
).split()
BRACKETS: dict[str, str] = {bracket: bracket for bracket in "()[]|"} | {name: _DERIVED[name] for name in _FENCES}
SYMBOLS: dict[str, str] = BRACKETS | {name: text.strip() for name, text in _DERIVED.items()}
SYMBOLS |= {character: character for character in "+*,.;:?><!=/@"} | {":=": ":=", "-": "−"}
SYMBOLS |= {"'": "′", "''": "″", "'''": "‴", "''''": "⁗"}


class Symbols(NamedTuple):
    """The text of each token that is a symbol, anywhere or as an argument without braces."""

    anywhere: dict[str, str]
    arguments: dict[str, str]


def _symbols(anywhere: dict[str, str]) -> Symbols:
    # As arguments, the brackets of two pairs are refused, and some others are other characters.
    refused = (r"\lvert", r"\rvert", r"\lVert", r"\rVert")
    arguments = {name: text for name, text in anywhere.items() if name not in refused}
    arguments |= {
        r"\sqrt": _ROOT,
        r"\langle": "\u2329",
        r"\rangle": "\u232a",
        r"\llbracket": "〚",
        r"\rrbracket": "〛",
        r"\|": "‖",
    }
    return Symbols(anywhere, arguments)


NEWER = _symbols(SYMBOLS)
# pandoc 1.19 lacks a few and has another character for one; else its table (that of texmath 0.9.4.4) is the same.
_LATER = (r"\dotsb", r"\dotsc", r"\dotsi", r"\dotsm", r"\dotso", r"\hdots")
OLDER = _symbols({name: text for name, text in SYMBOLS.items() if name not in _LATER} | {r"\circledcirc": "◎"})
SPACES = frozenset([r"\!", r"\,", r"\>", r"\:", r"\;", "\\ ", r"\quad", r"\qquad", "~"])
ACCENTS: dict[str, str] = {
    r"\hat": "\u0302", r"\widehat": "\u0302", r"\tilde": "\u0303", r"\widetilde": "\u0303", r"\bar": "‾",
    r"\overline": "¯", r"\vec": "\u20d7", r"\overrightarrow": "\u20d7", r"\overleftarrow": "\u20d6", r"\dot": "\u0307",
    r"\ddot": "\u0308", r"\acute": "\u0301", r"\grave": "\u0300", r"\breve": "\u0306", r"\check": "\u030c",
    r"\mathring": "\u030a",
}  # fmt: skip
ANGLES = {"<": "⟨", ">": "⟩"}  # after \left and \right, since pandoc 2.17
# Environment -> its brackets.
ENVIRONMENTS = dict.fromkeys("array matrix smallmatrix aligned align split gathered gather eqnarray".split(), ("", ""))
ENVIRONMENTS |= {"pmatrix": ("(", ")"), "bmatrix": ("[", "]"), "Bmatrix": ("{", "}"), "cases": ("{", "")}
ENVIRONMENTS |= {"vmatrix": ("∣", "∣"), "Vmatrix": ("∥", "∥")}
# Commands that the conversion drops with their content (mstyle, mtext, mphantom, menclose in MathML).
STYLES = frozenset(
    r"\mathrm \mathup \mbox \mathbf \mathbfup \mathit \mathtt \texttt \mathsf \mathsfup \mathbb \mathcal "
    r"\mathscr \mathfrak \mathbfit \mathsfit".split()
)
TEXTS = frozenset(r"\textrm \text \textbf \textit \textsf".split())
LEFT_OUT = frozenset([r"\phantom", r"\boxed"])
FRACTIONS = frozenset([r"\frac", r"\dfrac", r"\tfrac"])
STACKED = {r"\overset": "mover", r"\stackrel": "mover", r"\underset": "munder"}
SCALES = frozenset(rf"\{size}{side}" for size in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r"))

# Labels in the ground truth of MathML's characters and names; all others are their own labels.
_NAMES = "rightarrow sum int pi leq sin cos tan lim geq infty prime times alpha beta pm log } {"
_CHARACTERS = r"""
÷ \div × \times ± \pm ∑ \sum π \pi ∫ \int θ \theta ∞ \infty … \ldots β \beta → \rightarrow ≤ \leq ≥ \geq < \lt
> \gt σ \sigma ϕ \phi ′ \prime Γ \gamma γ \gamma μ \mu λ \lambda Δ \Delta ∃ \exists ∀ \forall ∈ \in ∂ \partial
≠ \neq α \alpha − -
""".split()
LABELS: dict[str, str] = {name: "\\" + name for name in _NAMES.split()}
LABELS |= dict(zip(_CHARACTERS[::2], _CHARACTERS[1::2], strict=True))
