"""The content of the report, and its notes on missing or damaged data."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import ExifTags, Image
from typer.testing import CliRunner

from hmerbench.benchmarks.cli.main import app
from hmerbench.benchmarks.data.archive import Archive, open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.report import summary
from hmerbench.benchmarks.report.page import browser, make
from hmerbench.benchmarks.report.page.browser import add_attention
from hmerbench.benchmarks.report.page.make import Material, drawings, gather, render, report
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.workspace import EVALUATED, remember, workspace
from hmerbench.evaluation import symlg
from hmerbench.evaluation.scoreboard.card import Card, System
from hmerbench.evaluation.scoring import alignment
from tests.helpers.paths import MEDIUM, ROOT
from tests.helpers.report_place import EXPRESSIONS, HOSTILE, N, Place, errors_of, make_archive


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of a page's other contents: drawing its figures takes seconds."""
    monkeypatch.setattr(make, "drawings", lambda material, results: [])


# ------------------------------------------------------------------------------------------------------ alignment


@pytest.mark.parametrize(
    ("truth", "prediction", "expected"),
    [
        ("a + b", "a + b", []),
        ("x", "X", ["symbol 1: x read as X"]),
        ("a b c d", "a d", ["symbols 2–3 missing: b c (Right of a)"]),
        ("a d", "a b c d", ["extra: b c (Right of a)"]),
        ("x ^ 2 + 1", "x 2 + 1", ["symbol 2: 2, Sup of x read as Right"]),
        ("P a", "p _ a", ["symbol 1: P read as p", "symbol 2: a, Right of P read as Sub"]),
        (
            r"\sum \limits _ i ^ n",
            r"\sum _ i ^ n",
            [r"symbol 2: n, Above of \sum read as Sup", r"symbol 3: i, Below of \sum read as Sub"],
        ),
        (r"\frac { a } { b + c }", r"\frac { a } { b - d }", ["symbol 4: + read as -", "symbol 5: c read as d"]),
        (r"\sqrt [ 3 ] { x }", r"\sqrt { x }", [r"symbol 2 missing: 3 (Above of \sqrt)"]),
        ("a", "b _ { c }", ["symbol 1: a read as b", "extra: c (Sub of b)"]),
    ],
)
def test_differences_in_words(truth: str, prediction: str, expected: list[str]) -> None:
    one, two = (alignment.tree(symlg.from_latex(latex)) for latex in (truth, prediction))
    assert alignment.in_words(one, two, alignment.differences(one, two)) == expected


def test_relations_that_do_not_change_paths_are_named() -> None:
    truth, prediction = (symlg.from_latex(latex) for latex in (r"\sqrt { a b }", r"\sqrt [ ] { a b }"))
    assert truth.nodes == prediction.nodes
    assert alignment.relations_in_words(truth, prediction) == [r"relation Inside missing between \sqrt and b"]


def test_tokens_are_mapped_to_symbols() -> None:
    for latex, symbols in (
        (r"\sqrt [ 3 ] { x _ { [ 1 ] } }", [r"\sqrt", "", "3", "", "", "x", "", "", "[", "1", "]", "", ""]),
        (r"\frac{1}2 \hat x \left( 12 \right)", ["-", "\u0302", "x", "", "12", ""]),  # raw LaTeX
    ):
        tree = alignment.tree(graph := symlg.from_latex(latex))
        assert [tree.labels[i] if i >= 0 else "" for i in alignment.symbols_of(latex, graph, tree)] == symbols


@pytest.mark.parametrize("latex", ["x " * 600, "x ^ { " * 60 + "x" + " }" * 60])
def test_too_large_expressions_are_refused(latex: str) -> None:
    with pytest.raises(alignment.TooLarge):
        alignment.tree(symlg.from_latex(latex))


# ------------------------------------------------------------------------------------------------------- the data


def entries_of(data: browser.TestSet, key: str) -> dict[str, dict]:
    """The page's entries for a run, by id."""
    return {row["id"]: entry for row in data.rows if (entry := row["runs"][key])}


def test_entries_have_the_scorers_verdicts(place: Place) -> None:
    notes: list[str] = []
    (data,) = browser.build(place.archive, place.runs, notes)
    for folder, key in ((place.a, place.key_a), (place.b, place.key_b)):
        entries = entries_of(data, key)
        assert {id_: entry["errors"][0] for id_, entry in entries.items()} == errors_of(folder)
    a = entries_of(data, place.key_a)
    assert a["label"]["errors"] == [1, 1, 0] and a["label"]["words"] == ["symbol 3: b read as c"]
    assert (a["label"]["truth_marks"], a["label"]["marks"]) == ("..x", "..x")
    assert a["unclosed"]["status"] == "unconverted" and "too early" in a["unclosed"]["reason"]
    assert a["nothing"]["status"] == "missing" and "tokens" not in a["nothing"]
    rows = {row["id"]: row for row in data.rows}
    assert rows["nested"]["kinds"] == ["script", "nested script"]
    assert notes == [] and len(rows) == N and all(row["image"] for row in data.rows)


def test_images_are_lossless(place: Place) -> None:
    image = place.archive.image("test", "limits")
    packed = np.frombuffer(base64.b64decode(browser.webp(image)), np.uint8)
    shown = cv2.imdecode(packed, cv2.IMREAD_GRAYSCALE)
    assert shown is not None and np.array_equal(shown, image)


def test_attention_is_on_the_networks_grid(place: Place) -> None:
    notes: list[str] = []
    (data,) = browser.build(place.archive, place.runs, notes)
    add_attention([data], place.archive, place.runs, 3, notes)
    played = {row["id"]: row["attention"][place.key_a] for row in data.rows if row["attention"]}
    assert 3 <= len(played) <= 6 and not any(place.key_b in row["attention"] for row in data.rows)
    assert any(note.startswith("There is no attention playback for comer-fusion · tiny") for note in notes)
    for id_, maps in played.items():
        tokens = ((EXPRESSIONS[id_][1] or "") if id_ in EXPRESSIONS else "1 2").split()
        height, width = place.archive.image("test", id_).shape
        assert len(maps["maps"]["attention"]) == len(tokens) + 1  # with <eos>
        assert maps["rows"] * maps["cell"][0] >= height and maps["columns"] * maps["cell"][1] >= width


def test_without_images_and_truth_verdicts_remain(place: Place) -> None:
    """This is how committed runs are shown without CROHME."""
    (data,) = browser.build(None, place.runs, [])
    entries = entries_of(data, place.key_a)
    assert entries["label"]["errors"] == [1, 1, 0] and "words" not in entries["label"]
    assert len(data.rows) == N and not any(row["truth"] or row["image"] for row in data.rows)
    assert {row["id"]: row["length"] for row in data.rows}["label"] == 3


# ------------------------------------------------------------------------------------- what is missing or damaged


def copy(place: Place, tmp_path: Path) -> tuple[Path, Path]:
    results = tmp_path / "results"
    shutil.copytree(place.results, results)
    return results, results / place.a.relative_to(place.results)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("spoil", "note"),
    [
        (lambda run: (run / "scores/test.csv").unlink(), "test is not scored yet"),
        (lambda run: (run / "predictions/test.tsv").unlink(), "test is not recognized"),
        (lambda run: (run / "scores/test.csv").write_text("id,status\nx,y\n"), "test.csv: damaged (1.errors: Field re"),
        (lambda run: (run / "predictions/test.tsv").write_bytes(b"PK\x03\x04"), "test.tsv"),
        (lambda run: (run / "history.jsonl").write_text('{"epoch": 1, "sec'), "history.jsonl: damaged"),
        (lambda run: (run / "history.jsonl").unlink(), "history.jsonl is missing"),
        (lambda run: (run / "environment.json").write_text("{"), "environment.json: damaged"),
        (lambda run: [shutil.rmtree(run / part) for part in ("scores", "predictions")], "test is not recognized"),
        (lambda run: (own := run / "predictions/test.tsv").write_text(own.read_text() + "x\tx\n"), "other predictions"),
    ],
)
def test_an_incomplete_run_becomes_a_note(place: Place, tmp_path: Path, spoil, note: str) -> None:
    results, run = copy(place, tmp_path)
    spoil(run)
    material = gather(place.crohme, results, 0)
    page = render(material, results)
    assert any(note in line and str(run) in line for line in material.notes), material.notes
    assert all(str(line).count("\n") == 0 for line in material.notes) and "comer-fusion" in page


@pytest.mark.usefixtures("undrawn")
def test_published_systems_are_browsed_beside_the_runs(place: Place, monkeypatch, tmp_path: Path) -> None:
    """Any two of them: a system is one more run of the page, and its verdicts belong to its predictions."""
    answers = {key: row[0] for key, row in EXPRESSIONS.items()} | {"label": HOSTILE}
    (tmp_path / "mine.json").write_text(json.dumps([{"id": key, "pred": text} for key, text in answers.items()]))
    card = Card.model_construct(name=HOSTILE, year=2024, url="https://example.org", tokenize=False)
    here = System("mine", card)
    monkeypatch.setattr(System, "files", lambda self, folder: iter([("test", folder / f"{self.key}.json")]))
    cards = [here, System("absent", card), System("own", Card.model_construct(url=None))]
    monkeypatch.setattr(browser, "read_cards", lambda: cards)
    notes: list[str] = []
    found = browser.read_systems(place.archive, tmp_path, notes)
    assert list(found) == ["system/mine"] and "absent.json: there is no such file" in notes[0] and len(notes) == 1
    (data,) = browser.build(place.archive, [], notes, found)
    verdicts = {id_: entry["exact"] for id_, entry in entries_of(data, "system/mine").items()}
    assert [id_ for id_ in EXPRESSIONS if not verdicts[id_]] == ["label"] and len(notes) == 1
    page = render(Material(place.archive, [], sets=[data], systems=found), tmp_path)
    assert HOSTILE not in page and "system/mine" in page


def test_runs_on_other_data_stay_out(place: Place, tmp_path: Path) -> None:
    other = make_archive(tmp_path / "other")
    (other / "data/test/caption.txt").write_text((other / "data/test/caption.txt").read_text().replace("a b", "b a"))
    notes: list[str] = []
    (data,) = browser.build(open_archive(other), place.runs, notes)
    assert data.runs == [] and "was trained on other data" in notes[0]


def test_a_packed_run_is_shown_once(place: Place, tmp_path: Path) -> None:
    """The run folder that was packed still exists on this machine."""
    shutil.copytree(place.a, tmp_path / "reproduced/bttr/tiny-seed7")
    shutil.copytree(place.results / "local", tmp_path / "local")
    (data,) = browser.build(place.archive, browser.find_runs([], tmp_path / "reproduced", tmp_path / "local"), [])
    assert data.runs == ["reproduced/bttr/tiny-seed7", place.key_b]


@pytest.mark.usefixtures("undrawn")
def test_without_crohme_the_embedded_sets_runs_are_shown_and_named(place: Place, tmp_path: Path) -> None:
    embedded = tmp_path / "local/embedded"
    shutil.copytree(place.a.parents[1], embedded / "runs")
    (place.crohme / "data/EMBEDDED.json").write_text('{"generator": 1, "seed": 7}')
    shutil.make_archive(str(embedded / "data"), "zip", place.crohme)
    (place.crohme / "data/EMBEDDED.json").unlink()
    material = gather(None, tmp_path, 0)
    (data,) = material.sets
    assert (data.data, data.name, sorted(data.runs)) == ("embedded", "test", [place.key_a, place.key_b])
    page = render(material, tmp_path)
    assert "Expressions and rows named embedded are NOT CROHME numbers." in page
    assert "NOT CROHME" not in render(gather(None, tmp_path / "empty", 0), tmp_path / "empty")
    shutil.copytree(MEDIUM, tmp_path / "reproduced/comer-fusion/medium-seed7")
    both = render(gather(None, tmp_path, 0), tmp_path)
    assert "rows named embedded are NOT CROHME numbers." in both


@pytest.mark.usefixtures("undrawn")
def test_what_evaluate_read_of_ones_own_set_is_shown(place: Place, tmp_path: Path) -> None:
    """Without a training set; a picture on its side, and one that cannot be read, are shown with what was done."""
    own = shutil.copytree(place.crohme, tmp_path / "own")
    shutil.rmtree(own / "data/train")
    images, exif = own / "data/test/img", Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    ink = np.array(Image.open(images / "label.bmp"))
    Image.fromarray(np.rot90(255 - np.pad(ink, 20))).save(images / "label.jpg", exif=exif)
    (images / "root.png").write_bytes(b"no picture")
    for name in ("label", "root"):
        (images / f"{name}.bmp").unlink()
    results, archive = tmp_path / "results", open_archive(own, trains=False)
    read = workspace(archive, results) / "evaluated/bttr/tiny-seed7-12345678"
    shutil.copytree(place.a, read)
    material = gather(own, results, 1)
    (data,) = material.sets
    rows = {row["id"]: row for row in data.rows}
    assert data.runs == ["local/bttr/tiny-seed7-12345678"] and len(rows) == N and all(row["truth"] for row in data.rows)
    assert [entry["exact"] for entry in entries_of(data, "local/bttr/tiny-seed7-12345678").values()].count(True) == 54
    assert "turned upright; inverted" in rows["label"]["prepared"] and rows["label"]["before"]
    assert (rows["root"]["image"], rows["root"]["before"]) == ("", "") and "root.png" in rows["root"]["prepared"]
    (table,) = (frame for frame in material.frames if "NOT CROHME" in frame.attrs["title"])
    assert table["dataset"].tolist() == ["foreign"] and table["source"].tolist() == ["local"]
    page = render(material, results)
    assert "ExpRate on foreign data (NOT CROHME)" in page and "cost is left out" not in page
    assert gather(None, results, 0).sets == []
    remember(archive, results)
    assert gather(None, results, 1).sets == material.sets
    own.rename(tmp_path / "moved")
    notes = "\n".join(gather(None, results, 0).notes)
    assert re.search("last job are not shown.*no such archive", notes)


@pytest.mark.usefixtures("undrawn")
def test_what_evaluate_read_of_crohme_is_shown(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it says, whatever data the weights were trained on."""
    monkeypatch.setattr(Archive, "name", "crohme")
    shutil.copytree(place.a, tmp_path / EVALUATED / "bttr/tiny-seed7-12345678")
    material = gather(place.crohme, tmp_path, 0)
    (data,) = material.sets
    assert data.runs == ["local/bttr/tiny-seed7-12345678"]
    shown, settings = tmp_path / EVALUATED / "bttr", RunFolder(place.a).settings
    titles = [browser.title(RunFolder(shown / f"tiny-seed7{digest}", settings)) for digest in ("-12345678", "")]
    assert [title.rpartition(", ")[2] for title in titles] == ["local 12345678", "local read again"]
    assert "NOT CROHME" not in render(material, tmp_path)


@pytest.mark.usefixtures("undrawn")
def test_without_any_run_the_reported_tables_remain(tmp_path: Path) -> None:
    text = report(None, tmp_path / "results").read_text()
    assert "59.33" in text and "WS-WAP" in text and "56.2–62.4" in text
    assert "There are no runs yet" in text and "make report CROHME=data.zip" in text


@pytest.mark.usefixtures("undrawn")
def test_a_page_is_replaced_whole_or_not_at_all(place: Place, tmp_path: Path) -> None:
    results, run = copy(place, tmp_path)
    page = results / "report/index.html"
    before = page.read_bytes()
    (run / "scores/test.json").write_text("{")
    with pytest.raises(UserError, match=r"test\.json: damaged"):
        report(place.crohme, results)
    assert page.read_bytes() == before and [path.name for path in page.parent.iterdir()] == ["index.html"]


def test_the_same_runs_give_the_same_page(place: Place) -> None:
    assert report(place.crohme, place.results, attention=3).read_bytes() == place.page.read_bytes()


def test_the_summary_has_the_runs_on_other_data_apart_from_crohmes(place: Place) -> None:
    summary = place.page.read_text().partition('<section id="expressions"')[0]
    own, crohme = re.findall(r"<caption>(.*?)</caption>(.*?)</table>", summary, re.DOTALL)
    assert own[0] == "ExpRate on foreign data (NOT CROHME), in percent, with the 95 % interval"
    assert own[1].count('<tr class="local">') == 2 and re.search(r"<td>\d\d\.\d\d \(\d\d\.\d–\d\d\.\d\)</td>", own[1])
    assert crohme[0] == "ExpRate on CROHME 2014, in percent" and "CoMER (Fusion)" in crohme[1]


def test_what_a_mark_in_the_summary_means_is_said_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = pd.DataFrame({"large, 1 seed": ["57.10† (53.1–61.0)"]}, pd.Index(["BTTR"], name="model"))
    monkeypatch.setattr(summary.Summary, "short_table", lambda self: marked)
    words = make._summary(tmp_path, [])["words"]
    assert "† trained wholly or in part by a program that is lost, not by this suite." in words


@pytest.mark.usefixtures("undrawn")
def test_a_page_tells_its_progress_and_refuses_the_folder_of_one_archives_runs(place: Place, capsys) -> None:
    gather(place.crohme, place.results, 0)
    said = capsys.readouterr().err
    assert "reading 2 runs" in said and "comparing 2 predictions of each of 60 in test" in said
    space = place.a.parents[2]
    with pytest.raises(UserError, match="make report CROHME="):
        report(None, space, 0)


def test_the_summary_and_the_expressions_come_first(place: Place) -> None:
    sections = re.findall(r'<section id="(\w+)"', place.page.read_text())
    assert sections == ["results", "expressions", "figures", "tables", "cost", "notes"]


def test_headings_of_tables_are_explained_as_they_are_shown(place: Place) -> None:
    shown = place.page.read_text().partition('<section id="tables"')[2].partition("</section>")[0]
    explained = dict(re.findall(r"<dt><b>(.*?)</b></dt><dd>(.*?)</dd>", shown))
    assert explained["ExpRate, ≤ 1 to ≤ 3"].startswith("percent without error")
    assert explained["95 % interval"].startswith("the 95 % interval of ExpRate, and")
    assert "|--" not in shown and "`" not in shown


def test_hostile_text_is_escaped_in_the_source(place: Place) -> None:
    text = place.page.read_text()
    assert "window.hacked" not in text and "<b>machine" not in text and "&lt;b&gt;machine" in text
    assert len(re.findall(r"</script>", text)) == text.count("<script")
    links = re.findall(r"(?:src|href)=[\"']?([^\s\"'>]*)", text.split("<script")[0])
    assert links and all(link.startswith(("#", "data:image/svg+xml;base64,")) for link in links)


def test_cost_has_one_row_per_run(place: Place) -> None:
    page = place.page.read_text()
    trained = page[page.index('id="cost"') : page.index('id="notes"')]
    assert trained.count("<tr") == 1 + 2 and trained.count("<td>2.5</td><td>2</td><td>5.5</td>") == 2  # minutes, epochs


def test_the_figures_are_those_of_make_figures_and_of_local_runs(place: Place, tmp_path: Path) -> None:
    results, _ = copy(place, tmp_path)
    (results / "figures").mkdir()
    (results / "figures/fig4-attention.png").write_bytes(b"a picture")
    shown = drawings(material := gather(place.crohme, results, 0), results)
    captions = [figure["caption"] for figure in shown]
    assert [caption.split(":")[0] for caption in captions[:3]] == ["Table 1", "Fig. 3", "Fig. 4"]
    assert shown[2]["address"] == "data:image/png;base64," + base64.b64encode(b"a picture").decode()
    folded = [figure["caption"] for figure in shown if figure["folded"]]
    assert folded == captions[3:] and len(folded) == len(material.runs) == 2
    for run, caption in zip(material.runs, folded, strict=True):
        assert caption.startswith("Confused symbols") and caption.endswith(f": {browser.title(run)}")
    assert place.page.read_text().count("data:image/svg+xml") == 2 + len(material.runs)


def test_every_figure_has_a_caption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "confidence.csv").symlink_to(ROOT / "results/confidence.csv")
    captions = [figure["caption"] for figure in drawings(Material(None, []), tmp_path)]
    assert len(captions) == 4 and captions[2].startswith("The share of readings that are right against their confid")
    monkeypatch.setattr(make, "draw", lambda results: [("new", Figure())])
    with pytest.raises(ValueError, match=r"words\.yaml has no captions of new"):
        drawings(Material(None, []), tmp_path)


@pytest.mark.parametrize(
    ("file", "note"),
    [
        ("reproduced/bttr/tiny-seed7/history.jsonl", "figures are left out: "),
        ("errors/test.json", "a figure is left out: "),
    ],
)
def test_figures_of_damaged_files_become_a_note(place: Place, tmp_path: Path, file: str, note: str) -> None:
    results, run = copy(place, tmp_path)
    shutil.copytree(run, results / "reproduced/bttr/tiny-seed7")
    damaged = (results if file.startswith("reproduced") else run) / file
    damaged.write_text("{")
    material = Material(place.archive, [], runs=browser.find_runs([], run.parent))
    drawings(material, results)
    assert [line.startswith(note) and str(damaged) in line for line in material.notes] == [True]


def test_the_command_says_where_the_page_is(place: Place, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", "--results", str(tmp_path)])
    assert done.exit_code == 0 and f"{tmp_path}/report/index.html" in done.stdout
    ignored = subprocess.run(["git", "check-ignore", "-q", "results/report/index.html"], cwd=ROOT)
    assert ignored.returncode == 0
