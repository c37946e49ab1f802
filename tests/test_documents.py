"""What a visitor meets first: documents whose links lead somewhere, a short README, a repository without ballast."""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.paths import ROOT

TRACKED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")[:-1]
# a template's links are those of the document that is made from it
DOCUMENTS = [name for name in TRACKED if name.endswith(".md") and "/templates/" not in name]
README = (ROOT / "README.md").read_text()
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


GUIDES = ["CONTRIBUTING.md", *(name for name in DOCUMENTS if re.match(r"docs/|\w+/README", name))]
THEIRS = re.compile(r".*/([A-Z]+|counting)\.\w+|evallg\.py")  # the reader's own, and the official scorer's


@pytest.mark.parametrize("name", GUIDES)
def test_files_that_a_guide_names_are_there(name: str) -> None:
    """A guide names a file from the top folder or from the one that it is about."""
    named = set(re.findall(r"`((?:\w+/)+\w+\.yaml|[\w/]+\.py)`", (ROOT / name).read_text()))
    missing = [path for path in named if not any(f"/{there}".endswith(f"/{path}") for there in TRACKED)]
    assert [path for path in sorted(missing) if not THEIRS.fullmatch(path)] == []


def test_every_tracked_figure_is_shown_by_a_document() -> None:
    """`make figures` draws many more, in three formats each."""
    texts = "".join((ROOT / name).read_text() for name in DOCUMENTS)
    figures = [name for name in TRACKED if name.startswith("results/figures/")]
    assert figures and [name for name in figures if f"figures/{Path(name).name}" not in texts] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 100


def test_a_clone_is_small() -> None:
    """Weights count twice in a clone, in the work tree and, as they do not compress, in its history."""
    sizes = {name: path.stat().st_size for name in TRACKED if (path := ROOT / name).is_file()}
    weights = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    others = {name: size for name, size in sizes.items() if name not in weights}
    assert len(others) > 1000 and sum(others.values()) < 36e6 and sum(weights.values()) < 35e6
    assert [name for name, size in others.items() if size > 0.8e6] == []


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == version


def commands() -> list[str]:
    """README's commands, one a line, without comments."""
    lines = "".join(re.findall(r"^    .*\n", README, re.MULTILINE)).replace("\\\n", " ").splitlines()
    return [line.partition("  #")[0].strip() for line in lines if re.match(r" +(make|mkdir|cp|printf|\.venv/)", line)]


def test_make_knows_what_the_readme_makes() -> None:
    made = [line for line in commands() if line.startswith("make ")]
    assert len(made) > 4
    for line in made:
        done = subprocess.run([*shlex.split(line), "-n"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"


@pytest.mark.release
def test_the_other_commands_of_the_readme_run(tmp_path: Path) -> None:
    """And its Python, with drawings for images; what is written stays out of the checkout."""
    for name in (".venv", "results/reproduced", "results/figures"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "images" / name).symlink_to(ROOT / "results/figures/circle.png")
    (python,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "readme.py").write_text(python)
    run = [line for line in commands() if not line.startswith("make ")]
    assert len(run) == 5
    script = "\n".join([*run, ".venv/bin/python readme.py"])
    environment = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-e"], input=script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    latex = "x ^ { 2 } + y ^ { 2 } = r ^ { 2 }"
    lines = done.stdout.splitlines()
    assert lines[0] == lines[-1] == latex and "NOT CROHME" in done.stdout + done.stderr


def test_actions_are_pinned_by_commit_and_may_read_alone() -> None:
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
        assert steps and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]) for step in steps)
        checkouts = [step for step in steps if step["uses"].startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_what_setup_installs_is_pinned_by_hashes() -> None:
    """But for torch, whose builds for CPUs lie in another index; all that pyproject.toml asks for is in a lock."""
    pinned = {"torch"}
    for name in ("requirements.lock", "requirements-test.lock", "requirements-dev.lock"):
        text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
        for entry in re.findall(r"^\S.*(?:\n +.*)*", text, re.MULTILINE):
            found = re.fullmatch(r"([\w.-]+)==\S+( ;[^\\]+)? \\\n(\s+--hash=sha256:[0-9a-f]{64}( \\\n|$))+", entry)
            assert found, f"{name}: {entry[:80]}"
            pinned.add(canonicalize_name(found[1]))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    asked = {canonicalize_name(Requirement(line).name) for line in [*project["dependencies"], *extras]}
    assert asked - {"hmerbench"} <= pinned
    installs = [line for line in (ROOT / "Makefile").read_text().splitlines() if "$(INSTALL)" in line and "-r " in line]
    assert [line for line in installs if "--require-hashes" not in line] == ["\t@$(INSTALL) -r requirements-torch.lock"]
    assert len(installs) == 4
