r"""Captions as people write them into tokens as CROHME has them: `x^2` becomes `x ^ { 2 }`.

Rules, whose words are in caption_rules.yaml, each counted by its name: dollars and other delimiters of mathematics go;
commands of fonts, of spaces and of sizes go (`\left`, `\mathrm`, `\displaystyle`, `\,`); names of functions become
commands (`\operatorname{sin}`, `sin`); synonyms become one (`\le`, `\leq`); arguments get braces (`\frac12`, `x_i`),
and nothing else has, but what follows a command that is not known; the subscript comes first; empty scripts go; `a'`
becomes `a ^ { \prime }`; `a \over b` a fraction; an array a matrix, without the letters of its columns; full-width
letters and digits ASCII; characters that nothing shows (U+200B) go.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unicodedata import category

from hmerbench.benchmarks.strict_files import read_yaml
from hmerbench.models.vocab import Vocabulary

_RULES = read_yaml(Path(__file__).with_name("caption_rules.yaml"))
SYNONYMS: dict[str, str] = _RULES.pop("synonyms")
_WORDS = {rule: frozenset(words.split()) for rule, words in _RULES.items()}
FUNCTIONS, FONTS, STYLES, SKIPPED = (_WORDS[rule] for rule in ("functions", "fonts", "styles", "skipped"))
OPTIONAL, ONE, TWO = (_WORDS[rule] for rule in ("optional_argument", "one_argument", "two_arguments"))
WITH_LIMITS = _WORDS["with_limits"]
ARRAYS = {r"\begin{array}", r"\begin{tabular}", r"\begin{alignedat}"}  # whose columns are in an argument
SPACES = _WORDS["spaces"] | {"\\ ", "\\\n", "\\\t"}
# commands that take no argument, or that the rules name
KNOWN = frozenset(Vocabulary().words) | FUNCTIONS | {r"\nolimits"}
MAX_DEPTH = 100  # of groups and arguments within each other: each takes up to five calls, and Python allows 1,000
FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
Limits = Literal["keep", "add", "drop"]
_DAMAGED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffd]")  # half a character is a surrogate
_TOKEN = re.compile(
    r"\\(?:begin|end)\s*\{\s*[A-Za-z]+\*?\s*\}|\\operatorname\*|\\hspace\*|\\[A-Za-z]+|\\.|[^\s\x00-\x1f\x7f]",
    re.DOTALL,
)
_NAME = re.compile(rf"(?<![\\A-Za-z])({'|'.join(sorted(_WORDS['bare']))})(?![A-Za-z])")
_HEIGHT = re.compile(r"(?<=\\\\)\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|cm|mm|in)\s*\]")  # of what is between two rows
_REWRITTEN = (_NAME, r"\\\1 ", "names of functions written as commands"), (_HEIGHT, " ", "spaces removed")
_DELIMITERS = (
    *(("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")),
    *((rf"\begin{{{name}}}", rf"\end{{{name}}}") for name in ("equation", "equation*")),
)


class Unsplit(ValueError):
    """A caption that cannot be put into tokens, with the reason."""


@dataclass(frozen=True)
class Caption:
    """The tokens of a caption, and how often each rule changed it."""

    tokens: tuple[str, ...]
    changes: Counter[str]


def caption_of(latex: str, limits: Limits = "keep", tidy: bool = True) -> Caption:
    r"""The caption that LaTeX spells. `limits`: `\sum _` and `\sum \limits _` stay as they are, or all become the one
    or the other. One that is not to be `tidy` is in tokens, and loses dollars alone. Raises Unsplit."""
    changes = Counter[str]()
    text = latex.strip()
    if tidy and (visible := "".join(letter for letter in text if category(letter) != "Cf")) != text:
        text, changes["invisible characters removed"] = visible.strip(), 1
    for start, end in _DELIMITERS:
        if text.startswith(start) and text.endswith(end) and len(text) >= len(start + end):
            text, changes["delimiters removed"] = text[len(start) : -len(end)], 1
            break
    else:
        if "$" in (text[:1], text[-1:]) and text.count("$") == 1 and not text.endswith(r"\$"):
            text, changes["delimiters removed"] = text.strip("$"), 1
    if _DAMAGED.search(text):
        raise Unsplit("holds control characters or damaged ones")
    if not tidy:
        if not text.split():
            raise Unsplit("is empty")
        return Caption(tuple(text.split()), changes)
    if (ascii_ := text.translate(FULL_WIDTH)) != text:
        text, changes["full-width characters written as ASCII"] = ascii_, 1
    for pattern, written, rule in _REWRITTEN:
        text, times = pattern.subn(written, text)
        changes += Counter({rule: times})
    # `\begin { matrix }` is a single one
    tokens = ["".join(token.split()) if token.endswith("}") else token for token in _TOKEN.findall(text)]
    if "$" in tokens:
        raise Unsplit("holds text around its mathematics ($)")
    if any(len(_TOKEN.findall(part)) > 1 for part in text.split()):
        changes["split into tokens"] = 1
    written = _with_limits(_Reader(tokens, changes).all(), limits, changes)
    if not written:
        raise Unsplit("is empty")
    return Caption(written, changes)


def _with_limits(tokens: Sequence[str], limits: Limits, changes: Counter[str]) -> tuple[str, ...]:
    r"""Count, and if wanted change, where limits of sums and the like stand."""
    written: list[str] = []
    for place, token in enumerate(tokens):
        after = tokens[place + 1] if place + 1 < len(tokens) else ""
        if token == r"\nolimits" or (token == r"\limits" and limits == "drop"):
            changes[f"{token} dropped"] += 1
            continue
        written.append(token)
        if token in WITH_LIMITS and after in ("_", "^"):
            if limits == "add":
                written.append(r"\limits")
                changes[r"\limits added"] += 1
            else:
                changes[r"written \sum _, not \sum \limits _"] += limits == "keep"
    return tuple(written)


class _Reader:
    """Recursive descent over tokens."""

    def __init__(self, tokens: Sequence[str], changes: Counter[str]):
        self.tokens, self.place, self.changes = tokens, 0, changes
        self.depth = 0

    def all(self) -> list[str]:
        """Everything. Raises Unsplit for braces that do not match."""
        written = self._until("")
        if self.place < len(self.tokens):
            raise Unsplit("has a } without its {")
        return written

    def _next(self) -> str:
        """The next token, "" at the end; what has no meaning of its own is passed over."""
        while self.place < len(self.tokens):
            token = self.tokens[self.place]
            if token in SPACES:
                self.changes["spaces removed"] += 1
            elif token in (r"\left", r"\right"):
                return token
            elif token in STYLES:
                self.changes[f"styles freed of {token}"] += 1
                if token == r"\middle" or token[1:4] in ("big", "Big"):
                    self._null()
            else:
                return token
            self.place += 1
        return ""

    def _null(self) -> bool:
        """Whether `.`, which is no bracket, follows; it is passed over."""
        found = self.tokens[self.place + 1 : self.place + 2] == ["."]
        self.place += found
        return found

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unsplit(f"is nested more than {MAX_DEPTH} deep")
        yield
        self.depth -= 1

    def _until(self, end: str) -> list[str]:
        """Up to `end`, which is not taken."""
        written: list[str] = []
        with self._deeper():
            while (token := self._next()) and token != end and token != "}":
                if token in (r"\over", r"\choose"):
                    self.place += 1
                    command = r"\frac" if token == r"\over" else r"\binom"
                    self.changes[f"{token} written as {command}"] += 1
                    below = self._until(end)
                    if not (_of_one_cell(written) and _of_one_cell(below)):
                        raise Unsplit(rf"has {token} beside & or \\ in one group")
                    written = [command, "{", *written, "}", "{", *below, "}"]
                else:
                    self._add(written, self._item())
        return written

    def _add(self, written: list[str], item: list[str]) -> None:
        """Append an item; a subscript goes before a superscript that its base has already (`R^{a}{}_{b}`). Raises
        Unsplit for a second script of one kind: LaTeX refuses it, or braces that go set it apart (`x^{2}{}^{3}`)."""
        place = len(written)
        if item[:1] in (["^"], ["_"]) and (before := _last_scripts(written)):
            scripts = _last_scripts(item)
            if twice := before.keys() & {item[0], *scripts}:
                raise Unsplit(f"has a second {min(twice)} on one base")
            if scripts.get("_") == 0:
                self.changes["subscripts put before superscripts"] += 1
                place = before["^"]
        written[place:place] = item

    def _item(self) -> list[str]:
        token = self._next()
        if token == r"\left":
            inner = [*self._bracket(token), *self._until(r"\right")]
            return [*inner, *self._bracket(r"\right")] if self._next() == r"\right" else inner
        if token == r"\right":
            return self._bracket(token)
        self.place += 1
        if token in SYNONYMS:
            self.changes[f"{token} written as {SYNONYMS[token]}"] += 1
            token = SYNONYMS[token]
        if token == r"\atop":  # \binom has brackets, \frac a bar
            raise Unsplit(rf"has {token}, which CROHME has no command for")
        if token == "{":
            return self._bare(self._group())
        if token in ("^", "_"):
            return self._scripts(token, self._argument(token))
        if token == "'":
            count = 1
            while SYNONYMS.get(following := self._next(), following) == "'":
                self.place, count = self.place + 1, count + 1
            self.changes["primes written as superscripts"] += 1
            inner = [r"\prime"] * count
            if self._next() == "^":
                self.place += 1
                inner += self._argument("^")[1:-1]
            return self._scripts("^", ["{", *inner, "}"])
        if token in OPTIONAL:
            self._optional()
        if token in FONTS:
            return self._font(token)
        if token in SKIPPED:
            self._argument(token)
            self.changes[f"{token} removed"] += 1
            return []
        if token in ONE:
            return [token, *self._optional(), *self._argument(token)]
        if token in TWO:
            return [token, *self._argument(token), *self._argument(token)]
        if token in ARRAYS:
            self._optional()
            if self._next() == "{":
                self._argument(token)
            self.changes[f"{token} written as \\begin{{matrix}}"] += 1
            return [r"\begin{matrix}"]
        written = [token]
        while token[:1] == "\\" and token[1:].isalpha() and token not in KNOWN and self._next() == "{":
            written += self._argument(token)
        return written

    def _bracket(self, command: str) -> list[str]:
        r"""The bracket after `\left` or `\right`, if there is one."""
        self.changes[f"brackets freed of {command}"] += 1
        null = self._null()
        self.place += 1
        return [] if null or self._next() in ("", "{", "}", r"\left", r"\right") else self._item()

    def _bare(self, inner: list[str], font: str = "") -> list[str]:
        """A group that is no argument, or is a font's, without its braces, unless it has the script that follows it
        already."""
        following = self._next()
        script = "^" if SYNONYMS.get(following, following) == "'" else following
        kept = script in _last_scripts(inner)
        if font or not kept:
            self.changes[f"freed of {font}" if font else "superfluous braces removed"] += 1
        return ["{", *inner, "}"] if kept else inner

    def _scripts(self, token: str, first: list[str]) -> list[str]:
        """A script with its argument, and the other one if it follows, the subscript first."""
        if token == "^" and _last_scripts(first[1:-1]) == {"^": 0}:  # a prime in a superscript
            first = first[2:-1]
        if token == "^" and self._next() == "_":
            self.place += 1
            self.changes["subscripts put before superscripts"] += 1
            return [*self._script("_", self._argument("_")), *self._script("^", first)]
        return self._script(token, first)

    def _script(self, token: str, argument: list[str]) -> list[str]:
        """A script, unless nothing stands in it."""
        if argument == ["{", "}"]:
            self.changes["empty scripts removed"] += 1
            return []
        return [token, *argument]

    def _group(self, end: str = "}", start: str = "{") -> list[str]:
        """The inside of braces or brackets, of which the first is taken."""
        inner = self._until(end)
        if self._next() != end:
            raise Unsplit(f"has a {start} without its {end}")
        self.place += 1
        return inner

    def _optional(self) -> list[str]:
        """The argument of a root in brackets."""
        if self._next() != "[":
            return []
        self.place += 1
        return ["[", *self._group("]", r"[ of \sqrt"), "]"]

    def _argument(self, of: str) -> list[str]:
        """One argument, in braces."""
        token = self._next()
        if token in ("", "}", "&", r"\\", "^", "_"):
            raise Unsplit(f"has no argument after {of}")
        if token == "{":
            self.place += 1
            return ["{", *self._group(), "}"]
        self.changes["arguments put in braces"] += 1
        with self._deeper():
            return ["{", *self._item(), "}"]

    def _font(self, font: str) -> list[str]:
        """What stands in a font, without it; the name of a function as its command."""
        inner = self._argument(font)[1:-1]
        name = "".join(inner)
        if name in FUNCTIONS and len(inner) > 1:
            self.changes[f"{font} {{ {name} }} written as \\{name}"] += 1
            return [f"\\{name}"]
        return self._bare(inner, font)


def _of_one_cell(tokens: Sequence[str]) -> bool:
    """Whether no cell, row or matrix begins or ends among tokens, but within whole matrices and arguments."""
    depth = 0
    for token in tokens:
        depth += token.startswith(("{", r"\begin{")) - token.startswith(("}", r"\end{"))
        if depth < 0 or (not depth and token in ("&", r"\\")):
            return False
    return not depth


def _last_scripts(tokens: Sequence[str]) -> dict[str, int]:
    """Where the scripts of the last symbol of some tokens begin, by their kind."""
    found, end = dict[str, int](), len(tokens)
    while end and tokens[end - 1] == "}":
        depth, start = 1, end - 1
        while start and depth:
            start -= 1
            depth += {"}": 1, "{": -1}.get(tokens[start], 0)
        if not start or tokens[start - 1] not in ("^", "_"):
            break
        end = start - 1
        found[tokens[end]] = end
    return found
