r"""What pandoc 2.17 makes of LaTeX, and the table of the commands that it reads as one symbol: the text that it writes
for each, and for each after \not (nothing where it refuses that).

    python -m tests.helpers.pandoc > evaluation/symlg/pandoc_symbols.tsv

It is asked about every command whose name its own program contains. Scoring uses the table and never runs pandoc.
"""

import re
import shutil
import string
import subprocess
from html import unescape
from pathlib import Path

VERSION = "2.17"

_NAME = re.compile(rb"\\[A-Za-z]+")
_SYMBOL = re.compile(r"<m[io][^>]*>([^<]+)</m[io]>")  # exactly one such element


def installed() -> Path | None:
    """The program of pandoc 2.17; None if there is no pandoc, or another one."""
    path = shutil.which("pandoc")
    if path is None:
        return None
    version = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8", check=True).stdout
    return Path(path) if version.startswith(f"pandoc {VERSION}.") else None


def mathml(formulas: list[str]) -> list[str | None]:
    """The content of pandoc's <math> for each formula; None where it cannot read one."""
    text = "\n\n".join(f"${formula}$" for formula in formulas)
    command = ["pandoc", "--from=markdown", "--to=html", "--mathml", "--wrap=none", "--quiet"]
    html = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=True).stdout
    paragraphs = re.findall(r"<p>(.*?)</p>", html, re.DOTALL)
    assert len(paragraphs) == len(formulas)
    found = [re.search(r"<semantics>(.*)<annotation", paragraph, re.DOTALL) for paragraph in paragraphs]
    return [match[1] if match else None for match in found]


def derive() -> dict[str, tuple[str, str]]:
    r"""The text of each command that is one symbol, alone and after \not."""
    program = installed()
    assert program, f"pandoc {VERSION} is not installed; Debian 12 has it (apt-get install pandoc)"
    spelt = {match.decode() for match in _NAME.findall(program.read_bytes())}
    symbols = _symbols(sorted(spelt | {"\\" + sign for sign in string.punctuation}))
    negated = _symbols([rf"\not {name}" for name in symbols])
    return {name: (text, negated.get(rf"\not {name}", "")) for name, text in symbols.items()}


def _symbols(formulas: list[str]) -> dict[str, str]:
    """The text of each formula that is one symbol."""
    symbols = [(name, _SYMBOL.fullmatch(found or "")) for name, found in zip(formulas, mathml(formulas), strict=True)]
    return {name: unescape(match[1]) for name, match in symbols if match}


if __name__ == "__main__":
    for name, texts in derive().items():
        print(name, *texts, sep="\t")
