r"""Which LaTeX commands pandoc 2.17 reads as one symbol, and the text that it writes for each, and for each after \not
(nothing where it refuses that): `pandoc_symbols.tsv`.

    python -m hmerbench.evaluation.symlg.derive_symbols > evaluation/symlg/pandoc_symbols.tsv

pandoc is asked about every command whose name its own program contains. Scoring uses the file and never runs pandoc.
"""

import re
import shutil
import string
import subprocess
import sys
from html import unescape
from pathlib import Path

from hmerbench.evaluation import InputError, run_program

VERSION = "2.17"

_NAME = re.compile(rb"\\[A-Za-z]+")
_SYMBOL = re.compile(r"<m[io][^>]*>([^<]+)</m[io]>")  # exactly one such element


def names(program: Path) -> list[str]:
    """Every control sequence that could be a command: those spelt out in the program, and a backslash with a sign."""
    spelt = {match.decode() for match in _NAME.findall(program.read_bytes())}
    return sorted(spelt | {"\\" + sign for sign in string.punctuation})


def mathml(formulas: list[str]) -> list[str | None]:
    """The content of pandoc's <math> for each formula; None where it cannot read one."""
    text = "\n\n".join(f"${formula}$" for formula in formulas)
    command = ["pandoc", "--from=markdown", "--to=html", "--mathml", "--wrap=none", "--quiet"]
    html = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=True).stdout
    paragraphs = re.findall(r"<p>(.*?)</p>", html, re.DOTALL)
    if len(paragraphs) != len(formulas):
        raise InputError(f"pandoc: {len(paragraphs)} paragraphs for {len(formulas)} formulas")
    found = [re.search(r"<semantics>(.*)<annotation", paragraph, re.DOTALL) for paragraph in paragraphs]
    return [match[1] if match else None for match in found]


def installed() -> Path | None:
    """The program of pandoc 2.17; None if there is no pandoc, or another one."""
    path = shutil.which("pandoc")
    if path is None:
        return None
    version = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8", check=True).stdout
    return Path(path) if version.startswith(f"pandoc {VERSION}.") else None


def derive() -> dict[str, tuple[str, str]]:
    r"""The text of each command that is one symbol, alone and after \not. Raises InputError without pandoc 2.17."""
    if (program := installed()) is None:
        raise InputError(f"pandoc {VERSION} is not installed; Debian 12 has it (apt-get install pandoc)")
    symbols = _symbols(names(program))
    negated = _symbols([rf"\not {name}" for name in symbols])
    return {name: (text, negated.get(rf"\not {name}", "")) for name, text in symbols.items()}


def _symbols(formulas: list[str]) -> dict[str, str]:
    """The text of each formula that is one symbol."""
    symbols = [(name, _SYMBOL.fullmatch(found or "")) for name, found in zip(formulas, mathml(formulas), strict=True)]
    return {name: unescape(match[1]) for name, match in symbols if match}


def main() -> None:
    """Print the table."""
    for name, texts in derive().items():
        print(name, *texts, sep="\t")


if __name__ == "__main__":
    sys.exit(run_program(main))
