"""What a visitor meets first: documents whose links lead somewhere, a short README, a repository without ballast."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers.places import ROOT

TRACKED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")[:-1]
DOCUMENTS = [name for name in TRACKED if name.endswith(".md")]
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    for target in (first or second for first, second in LINK.findall(text)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / name).parent / path if path else ROOT / name
        assert found.exists(), f"{name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings], target


def test_every_tracked_figure_is_shown_by_a_document() -> None:
    """`make figures` draws many more, in three formats each."""
    texts = "".join((ROOT / name).read_text() for name in DOCUMENTS)
    figures = [name for name in TRACKED if name.startswith("results/figures/")]
    assert figures and [name for name in figures if f"figures/{Path(name).name}" not in texts] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_no_large_file_is_tracked_but_weights() -> None:
    assert TRACKED
    large = [name for name in TRACKED if (path := ROOT / name).is_file() and path.stat().st_size > 1_000_000]
    assert [name for name in large if Path(name).suffix != ".safetensors"] == []
