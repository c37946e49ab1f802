# ruff: noqa: SIM905  (word tables read better as text)
"""What each LaTeX command is in MathML, as pandoc writes it, and the symLG labels of MathML's characters and names."""

from importlib import resources
from string import ascii_letters, digits
from typing import NamedTuple


def table() -> dict[str, tuple[str, str]]:
    r"""The character or name of every command that pandoc 2.17 reads as one symbol, and what it is after \not, "" where
    pandoc refuses that (tests/helpers/pandoc.py made the file)."""
    text = resources.files("hmerbench.evaluation.symlg").joinpath("pandoc_symbols.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return {name: (symbol, negated) for name, symbol, negated in rows}


_TABLE = table()
_DERIVED = {name: symbol for name, (symbol, _) in _TABLE.items()}
_ROOT = _DERIVED.pop(r"\sqrt")  # a symbol only as an argument without braces
# What may follow \left and \big.
_FENCES = (
    r"\{ \} \lbrack \lbrace \rbrack \rbrace \| \vert \lvert \rvert \Vert \lVert \rVert \langle \rangle \lfloor \rfloor "
    r"\lceil \rceil \llbracket \rrbracket \ulcorner \urcorner"
).split()
BRACKET_WORDS = [name[1:] for name in _FENCES if name[1:].isalpha()]
BRACKETS: dict[str, str] = {bracket: bracket for bracket in "()[]|"} | {name: _DERIVED[name] for name in _FENCES}
SYMBOLS: dict[str, str] = BRACKETS | {name: text.strip() for name, text in _DERIVED.items()}
OPERATORS: dict[str, str] = {character: character for character in "+*,.;:?><!=/@"} | {":=": ":=", "-": "−"}
OPERATORS |= {"'": "′", "''": "″", "'''": "‴", "''''": "⁗"}
SYMBOLS |= OPERATORS
# Command -> the mark that it puts above or, with munder, below its argument.
_ACCENTS = r"""
\hat 0302 \widehat 0302 \tilde 0303 \widetilde 0303 \bar 203e \overline af \overbar af \vec 20d7 \Vec 20d7 \lvec 20d0
\LVec 20d6 \overrightarrow 20d7 \overleftarrow 20d6 \overleftrightarrow 20e1 \leftharpoonaccent 20d0
\rightharpoonaccent 20d1 \dot 0307 \Dot 0307 \ddot 0308 \DDot 0308 \dddot 20db \DDDot 20db \ddddot 20dc \acute 0301
\grave 0300 \breve 0306 \check 030c \mathring 030a \ring 030a \ocirc 030a \candra 0310 \ovhook 0309 \droang 031a
\oturnedcomma 0312 \ocommatopright 0315 \asteraccent 20f0 \annuity 20e7 \widebridgeabove 20e9 \enclosecircle 20dd
\enclosesquare 20de \enclosediamond 20df \enclosetriangle 20e4 \overbrace 23de \overbracket 23b4 \overparen 23dc
\wideparen 23dc \utilde 0330 \wideutilde 0330 \threeunderdot 20e8 \underleftarrow 20ee \underrightarrow 20ef
\underleftharpoondown 20ed \underrightharpoondown 20ec
""".split()
ACCENTS = {name: ("mover", chr(int(code, 16))) for name, code in zip(_ACCENTS[::2], _ACCENTS[1::2], strict=True)}
ACCENTS |= {r"\underbar": ("munder", "\u0331"), r"\underbrace": ("munder", "⏟")}
ACCENTS |= {r"\underbracket": ("munder", "⎵"), r"\underparen": ("munder", "⏝")}
BRACES = frozenset("⏞⎴⏟⎵")  # scripts of these go above and below, as after \limits


class Symbols(NamedTuple):
    """The text of each token that is a symbol, anywhere or as an argument without braces; accents with their marks."""

    anywhere: dict[str, str]
    arguments: dict[str, str]
    accents: dict[str, tuple[str, str]]


# As arguments, some brackets are refused, and others are other characters.
_REFUSED = {r"\lvert", r"\rvert", r"\lVert", r"\rVert"}
_OTHERS = {r"\sqrt": _ROOT, r"\|": "‖"}
_OTHERS |= {r"\langle": "\u2329", r"\rangle": "\u232a", r"\llbracket": "〚", r"\rrbracket": "〛"}


def _symbols(anywhere: dict[str, str], accents: dict[str, tuple[str, str]], refused: set[str]) -> Symbols:
    arguments = {name: text for name, text in anywhere.items() if name not in refused}
    return Symbols(anywhere, arguments | _OTHERS, ACCENTS | accents)


NEWER = _symbols(
    SYMBOLS,
    {r"\underline": ("munder", "_"), r"\vertoverlay": ("mover", "\u20d2"), r"\not": ("mover", "\u0338")},
    _REFUSED | {r"\{"},
)
# pandoc 1.19 lacks a few and has another character for one; else its table (that of texmath 0.9.4.4) is the same.
_LATER = (r"\dotsb", r"\dotsc", r"\dotsi", r"\dotsm", r"\dotso", r"\hdots")
_EARLIER = {r"\circledcirc": "◎", r"\mod": "mod"}
OLDER = _symbols(
    {name: text for name, text in SYMBOLS.items() if name not in _LATER} | _EARLIER,
    {r"\underline": ("munder", "\u0332")},
    _REFUSED,
)
SPACES = frozenset([r"\!", r"\,", r"\>", r"\:", r"\;", "\\ ", r"\quad", r"\qquad", "~"])
ANGLES = {"<": "⟨", ">": "⟩"}  # after \left and \right, since pandoc 2.17
# Environment -> its brackets.
ENVIRONMENTS = dict.fromkeys(
    "array matrix smallmatrix aligned align alignat alignedat flalign flaligned split gathered gather multline "
    "eqnarray equation".split(),
    ("", ""),
)
ENVIRONMENTS |= {"pmatrix": ("(", ")"), "bmatrix": ("[", "]"), "Bmatrix": ("{", "}"), "cases": ("{", "")}
ENVIRONMENTS |= {"vmatrix": ("∣", "∣"), "Vmatrix": ("∥", "∥")}
MAY_BE_EMPTY = ("gathered", "gather", "multline")
# Commands that the conversion drops with their content (mstyle, mtext, mphantom, menclose in MathML).
STYLES = frozenset(
    r"\mathrm \mathup \mathbf \boldsymbol \bm \mathbold \pmb \mathbfup \mathit \mathtt \texttt \mathsf \mathsfup "
    r"\mathbb \mathcal \mathscr \mathfrak \mathbfit \mathbfsfup \mathbfsfit \mathbfscr \mathbffrak \mathbfcal "
    r"\mathsfit".split()
)
NEWER_STYLES = frozenset([r"\symbf", r"\mathds"])
TEXTS = frozenset(r"\textrm \text \textbf \textit \texttt \textsf \mbox".split())
# The commands that may stand in a text.
IN_TEXT = frozenset(rf"\{name}" for name in [*"#$%&_{}`'^~\".= oOlLcvu", *"aa AA ss ae AE oe OE ldots char".split()])
IN_TEXT |= {r"\textasciitilde", r"\textasciicircum", r"\textbackslash"}
LEFT_OUT = {r"\phantom": "mphantom", r"\boxed": "menclose"}
DROPPED = STYLES | NEWER_STYLES | TEXTS | LEFT_OUT.keys() | {r"\dfrac", r"\tfrac"}
SIZES = (r"\displaystyle", r"\textstyle", r"\scriptstyle", r"\scriptscriptstyle")  # pandoc 1.19 knows the first alone
FRACTIONS = frozenset([r"\frac", r"\dfrac", r"\tfrac", r"\binom"])
CHOICES = {r"\choose": "()", r"\brack": "[]", r"\brace": "{}", r"\bangle": "⟨⟩"}  # between what is above and below
STACKED = {r"\overset": "mover", r"\stackrel": "mover", r"\underset": "munder"}
SCALES = frozenset(rf"\{size}{side}" for size in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r"))
SCALES -= {r"\Bigl"}  # pandoc has forgotten it
CLASSES = frozenset(rf"\math{kind}" for kind in "op rel bin ord open close punct".split())
# After these, pandoc 1.19 reads no comment, label or \nonumber.
WITHOUT_IGNORED = FRACTIONS | STACKED.keys() | SCALES | STYLES | TEXTS
# Of pandoc 2.17 alone:
ARROWS = {r"\xleftarrow": "←", r"\xrightarrow": "→"}
MODULI = {r"\mod": ("", "mod", ""), r"\bmod": ("", "mod", ""), r"\pmod": ("(", "mod", ")"), r"\pod": ("(", "", ")")}
# What \not makes of a token: pandoc 1.19 of five characters, 2.17 of most, which it strikes out if it knows no other.
_STRUCK_OUT = ":()[]|" + ascii_letters + digits
NEGATIONS = {token: negated for name, (symbol, negated) in _TABLE.items() if negated for token in (symbol, name)}
NEGATIONS |= {"=": "≠", "<": "≮", ">": "≯"} | {character: f"{character}\u0338" for character in _STRUCK_OUT}
_OLDER = dict(zip("⊂⊃⊆⊇∈", "⊄⊅⊈⊉∉", strict=True))
OLDER_NEGATIONS = {name: _OLDER[symbol] for name, symbol in SYMBOLS.items() if symbol in _OLDER}

# Labels in the ground truth of MathML's characters and names; all others are their own labels.
_NAMES = "rightarrow sum int pi leq sin cos tan lim geq infty prime times alpha beta pm log } {"
_CHARACTERS = r"""
÷ \div × \times ± \pm ∑ \sum π \pi ∫ \int θ \theta ∞ \infty … \ldots β \beta → \rightarrow ≤ \leq ≥ \geq < \lt
> \gt σ \sigma ϕ \phi ′ \prime Γ \gamma γ \gamma μ \mu λ \lambda Δ \Delta ∃ \exists ∀ \forall ∈ \in ∂ \partial
≠ \neq α \alpha − -
""".split()
LABELS: dict[str, str] = {name: "\\" + name for name in _NAMES.split()}
LABELS |= dict(zip(_CHARACTERS[::2], _CHARACTERS[1::2], strict=True))
