r"""What stands around a formula in Markdown and in the output of language models, and its removal: dollars, \[ \],
\( \), code fences, bold type, quotation marks, environments for one formula, \boxed, \tag, a line break, marks of the
beginning and end, `LaTeX:`, sentences around a single formula, and characters of no width."""

import re
from collections import Counter
from collections.abc import Container
from itertools import accumulate

from hmerbench.evaluation.symlg import Unconverted, body_of, formula_in
from hmerbench.evaluation.symlg.formula import formula_of, prediction_file
from hmerbench.evaluation.symlg.graph import MAX_CHARACTERS

MAX_LAYERS = 100  # of wrappers around one formula
MAX_END = 200  # characters of an equation's number or another mark at the end

_LANGUAGE = r"[ \t]*(?:[\w+-]+[ \t]*(?=\n)|(?i:latex|tex|math|markdown|text)\b)?"
_BEGINS = r"(?:<\|\w+\|>|<(?i:s|sos|bos|start|cls|pad)>|\[(?i:SOS|BOS|START|CLS|PAD)\])"
_ENDS = r"(?:<\|\w+\|>|<(?i:/?s|eos|eol|end|sep|pad|br ?/?)>|\[(?i:EOS|END|SEP|PAD)\])"
_SUBJECT = "(?i:latex|tex|math|formula|equation|answer|output|result)"
_ELEMENT = rf"(?:{_SUBJECT}|code|pre|p|div|span)"
_FENCE = r"(?:`{3,}|~{3,})"
_ARGUMENT = r"\{(?:[^{}]|\{[^{}]*\})*\}"
# Around the formula: the name to tell, what begins, what ends.
_PAIRS = (
    ("code fence", _FENCE + _LANGUAGE, r"(?<![`~])" + _FENCE),
    ("code", r"`{1,2}(?!`)", r"(?<!`)`{1,2}"),
    ("bold", r"\*\*(?=\S)", r"(?<=\S)\*\*"),
    ("bold", r"__(?=\S)", r"(?<=\S)__"),
    ("italics", r"\*(?=\S)", r"(?<=\S)\*"),
    ("italics", r"_(?=\S)", r"(?<=[^\s_])_"),
    ("quotation marks", r"(?:\"{1,3}(?=\S)|[“„«])", r"(?:(?<![\s\"])\"{1,3}|[”“»])"),
    ("quotation marks", r"['‘](?=\S)", r"(?<=\S)['’]"),
    ("element", rf"<{_ELEMENT}>", rf"</{_ELEMENT}>"),
    ("element", rf"\[{_ELEMENT}\]", rf"\[/{_ELEMENT}\]"),
    ("$$", r"[$＄]{2}", r"(?<!\\)[$＄]{2}"),
    ("$", r"[$＄]", r"(?<!\\)[$＄]"),
    (r"\[ \]", r"\\\[", r"\\\]"),
    (r"\( \)", r"\\\(", r"\\\)"),
    *(
        (name, rf"\\begin\s*\{{\s*{name}\*?\s*\}}", rf"\\end\s*\{{\s*{name}\*?\s*\}}")
        for name in ("equation", "displaymath", "math", "dmath", "subequations")
    ),
)
_AROUND = tuple((name, re.compile(rf"{begin}(.*){end}", re.DOTALL), re.compile(end)) for name, begin, end in _PAIRS)
_BOXED = re.compile(r"\\boxed\s*\{(.*)\}", re.DOTALL)
# Delimiters of a formula between sentences, or without their partner, as where an answer was cut short.
_DELIMITERS = re.compile(rf"{_FENCE}{_LANGUAGE}|\\.|\$\$?", re.DOTALL)
_PARTNERS = {r"\[": r"\]", r"\(": r"\)", "$": "$", "$$": "$$", "```": "```", "~~~": "~~~"}
# Before it, and after it.
_BEFORE = (
    ("<s>", re.compile(rf"(?:{_BEGINS}(?:(?i:assistant)\b:?)?\s*)+")),
    (
        "LaTeX:",
        re.compile(
            rf"#{{1,6}} [^\n]*\n|(?:\*\*)?(?:{_SUBJECT}|(?i:prediction|assistant))(?: code)?(?:\*\*)?\s*[:：](?:\*\*)?"
        ),
    ),
    (r"\tag", re.compile(rf"\\tag\s*\*?\s*{_ARGUMENT}\s*")),
)
_AFTER = (
    ("</s>", re.compile(rf"(?:{_ENDS}\s*)+$")),
    (r"\\", re.compile(r"(?<!\\)(?:\\\\(?:\s*\[[^\[\]]*\])?\s*)+$")),
    (r"\\", re.compile(r"\\(?:newline|par)$")),
    (r"\tag", re.compile(rf"\\(?:notag|(?:tag\s*\*?|l?eqno)\s*(?:{_ARGUMENT}|\([^()]*\)))$")),
)
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)  # what a language model wrote before its answer
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
# Environments for several lines: removed around a single line, where the truth has no table.
_LINES = re.compile(
    r"\\begin\s*\{\s*(align|aligned|alignat|alignedat|flalign|gather|gathered|multline|split|eqnarray)\*?\s*\}"
    r"(?P<line>.*)\\end\s*\{\s*\1\*?\s*\}",
    re.DOTALL,
)
_COLUMNS = re.compile(r"\s*\{\s*\d+\s*\}")  # how many alignat has
_DOLLAR = re.compile(r"(?<!\\)\$")
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%[^\n]*\n")


class Predictions(dict[str, str]):
    """Prediction files' texts by id, without wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: dict[str, list[str]] = {}  # the wrappers of each prediction that had some
        self.unofficial: set[str] = set()  # those that the official chain would not have read

    def add(self, key: str, text: str, removed: list[str], official: bool) -> None:
        """Add a prediction's text without the wrappers that it had."""
        self[key] = text
        if removed:
            self.removed[key] = self.removed.get(key, []) + removed
        if removed and not official:
            self.unofficial.add(key)

    def kept(self, keys: Container[str]) -> "Predictions":
        """Those with one of these ids."""
        kept = Predictions()
        for key in (key for key in self if key in keys):
            kept.add(key, self[key], self.removed.get(key, []), key not in self.unofficial)
        return kept

    def note(self) -> str | None:
        """What was removed, in words."""
        if not self.removed:
            return None
        counts = Counter(name for names in self.removed.values() for name in dict.fromkeys(names))
        shown = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
        note = f"{len(self.removed)} of {len(self)} predictions are wrapped, and read without: {shown}"
        if self.unofficial:
            note += f"; the official scorer would not take it away from {len(self.unofficial)} of them (wrap:removed)"
        return note


def read(predictions: Predictions, key: str, source: str, listed: bool) -> None:
    """Add a prediction, given as its file's text or, `listed`, as a row of a list. A row with dollars goes the way of a
    file; one without is all formula."""
    body = source if listed else body_of(source)
    if thought := _THOUGHT.match(body):
        body = body[thought.end() :]
    as_file = prediction_file(key, without_comments(source).split()) if listed else source
    if len(body) > MAX_CHARACTERS:
        predictions.add(key, as_file, [], True)
        return
    marked = not listed or _DOLLAR.search(body) is not None
    outer = ["<think>"] if thought else []
    formula, official = body, not marked
    if marked:
        try:
            formula, official = formula_in(f"%{key}\n{body}"), True
            outer += [("$$" if "$$" in body else "$")] if listed else []
        except Unconverted:  # no dollars, or blanks within them
            pass
    inner, names = unwrapped(formula)
    inner = without_comments(inner)
    if not official and not listed and (lines := _LINES.fullmatch(inner.strip())):
        names.append(lines[1])  # displayed as it is; within dollars it is a formula
    if (names and inner.strip()) or outer:
        official = official and not thought and set(names) <= {"equation"}  # which pandoc reads by itself
        predictions.add(key, prediction_file(key, inner.split()), outer + names, official)
    else:
        predictions.add(key, as_file, [], True)


def without_comments(latex: str) -> str:
    """LaTeX without its comments that end with a line: in one line, they would take along what follows."""
    before, end, last = latex.rpartition("\n")
    return _COMMENT.sub(r"\1 ", before + end) + last


def unwrapped(formula: str) -> tuple[str, list[str]]:
    """A formula without what is around it, and the names of that, from outside to inside."""
    names: list[str] = []
    if _INVISIBLE.search(formula):
        formula, names = _INVISIBLE.sub("", formula), ["invisible characters"]
    while len(names) < MAX_LAYERS and (found := _layer(formula.strip())) is not None:
        formula, name = found
        names.append(name)
    return formula, names


def _layer(text: str) -> tuple[str, str] | None:
    """The text within the outermost wrapper, and its name; None if there is none."""
    for name, around, end in _AROUND:
        if (match := around.fullmatch(text)) and not end.search(match[1]):  # else two formulas are beside each other
            return match[1], name
    for name, before in _BEFORE:
        if (match := before.match(text)) and match.end() < len(text):
            return text[match.end() :], name
    for name, after in _AFTER:
        if (match := after.search(text, max(0, len(text) - MAX_END))) and match.start():
            return text[: match.start()], name
    if (match := _BOXED.fullmatch(text)) and _balanced(match[1]):
        return match[1], r"\boxed"
    return _among_sentences(text)


def _among_sentences(text: str) -> tuple[str, str] | None:
    """The text within its only delimiters, or beside its only one if that is at its beginning or end; and a name."""
    marks = [mark for mark in _DELIMITERS.finditer(text) if mark[0][:3] in (*_PARTNERS, r"\]", r"\)")]
    if len(marks) == 2 and _PARTNERS.get(marks[0][0][:3]) == marks[1][0][:3]:
        return text[marks[0].end() : marks[1].start()], "sentences"
    if len(marks) == 1 and len(marks[0][0]) < len(text):
        if marks[0].start() == 0:
            return text[marks[0].end() :], marks[0][0][:3]
        if marks[0].end() == len(text):
            return text[: marks[0].start()], marks[0][0][:3]
    return None


def _balanced(text: str) -> bool:
    steps = ({"{": 1, "}": -1}.get(brace, 0) for brace in re.findall(r"\\.|([{}])", text))
    depths = [*accumulate(steps, initial=0)]
    return min(depths) == depths[-1] == 0


def on_one_line(formula: str) -> tuple[str, str] | None:
    """The only line of an environment for several, without marks of alignment, and the environment; None for others."""
    match = _LINES.fullmatch(formula.strip())
    if match is None:
        return None
    line = _COLUMNS.sub("", match["line"], count=1) if match[1].endswith("at") else match["line"]
    line, _ = unwrapped(line)
    if "\\\\" in line or r"\begin" in line or not line.strip():
        return None
    return re.sub(r"(?<!\\)&", " ", line), match[1]


def without_alignment(predictions: Predictions, key: str) -> None:
    """Take a prediction out of an environment for several lines if it has one."""
    if r"\begin" in predictions[key] and (found := on_one_line(without_comments(formula_of(predictions[key])))):
        line, name = found
        predictions.add(key, prediction_file(key, line.split()), [name], False)
