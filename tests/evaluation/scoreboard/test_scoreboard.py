"""Cards, the board made from them, and the committed counts where the predictions are at hand."""

import csv
import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from hmerbench.evaluation import InputError
from hmerbench.evaluation.scoreboard.board import COLUMNS, COUNTS, RULES, TOGETHER, groups_of, make_board
from hmerbench.evaluation.scoreboard.card import Card, System, read_card, read_cards
from hmerbench.evaluation.scoreboard.commands import escaped, markdown
from hmerbench.evaluation.scoring import outcome
from hmerbench.evaluation.scoring.inputs import matched, read_ground_truth
from hmerbench.evaluation.scoring.outcome import in_process
from hmerbench.evaluation.scoring.stats import Images
from tests.helpers.commands import hmerbench
from tests.helpers.paths import ROOT, SYSTEMS
from tests.helpers.scored_files import packed

YEARS = ("2014", "2016", "2019")
TRUTH = {"e0": "a + b", "e1": "x ^ 2", "e2": r"\frac { 1 2 } { b }", "e3": r"\sqrt { a b }"}
HOSTILE = "<img src=x onerror=alert(1)> | [x](javascript:y) `_*"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return packed(tmp_path / "data.zip", YEARS, TRUTH)


def write_card(folder: Path, key: str, answers: Mapping[str, Mapping[str, str]], **changed: object) -> Path:
    """A card and its predictions, in `folder`/cards and `folder`/systems."""
    files = {}
    for year, predicted in answers.items():
        path = folder / "systems" / key / f"{year}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([{"img_id": id_, "pred": text} for id_, text in predicted.items()]))
        files[year] = {"path": f"{key}/{path.name}", "sha256": sha256(path.read_bytes()).hexdigest()}
    card = {"name": key, "paper": "P", "year": 2022, "url": "https://example.org/p", "license": "MIT"}
    card |= {"training": "crohme", "trained_on": "CROHME", "parameters": "1 M", "files": files} | changed
    (folder / "cards").mkdir(exist_ok=True)
    (folder / f"cards/{key}.yaml").write_text(yaml.safe_dump({k: v for k, v in card.items() if v is not None}))
    return folder / f"cards/{key}.yaml"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"license": None}, "license: Field required"),
        ({"license": ""}, "license: String should match"),
        ({"training": "secret"}, "training: Input should be 'crohme', 'more' or 'test labels'"),
        ({"colour": "red"}, "colour: Extra inputs"),
        ({"url": "javascript:alert(1)"}, "url: URL scheme should be"),
        ({"files": {}}, "files: Dictionary should have at least 1 item"),
        ({"files": {"2014": {"path": "../x", "sha256": "0" * 64}}}, "files.2014.path: Value error, leads out"),
        ({"files": {"2014": {"path": "x", "sha256": "1"}}}, "files.2014.sha256: String should match"),
        ({"files": {"2013": {"path": "x", "sha256": "0" * 64}}}, "files.2013"),
        ({"name": "two\nlines"}, "name: String should match"),
        ({"reported": [{"metric": "m", "source": "s", "rates": {"2014": 101}}]}, "less than or equal to 100"),
    ],
)
def test_a_wrong_card_is_refused_in_one_line(tmp_path: Path, changed: dict, message: str):
    path = write_card(tmp_path, "mine", {"2014": TRUTH}, **changed)
    with pytest.raises(InputError) as caught:
        read_card(path)
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_predictions_must_be_those_of_the_card(tmp_path: Path):
    system = read_card(write_card(tmp_path, "mine", {"2014": TRUTH}))
    assert not system.complete(None) and system.complete(tmp_path / "systems")
    ours = System("ours", system.card.model_copy(update={"url": None}))
    with pytest.raises(InputError, match=r"2014.json is not here; fetch it from a checkout of this suite into"):
        dict(ours.files(None))
    with pytest.raises(InputError, match=r"mine/2014.json is not here; fetch it from https://example.org/p"):
        list(system.files(None))
    (tmp_path / "systems/mine/2014.json").write_text("[]")
    with pytest.raises(InputError, match=r"2014.json: its checksum is .* not the card's"):
        list(system.files(tmp_path / "systems"))
    (tmp_path / "cards/mine.yaml").write_text("a: [")
    with pytest.raises(InputError, match="not YAML"):
        read_card(tmp_path / "cards/mine.yaml")


def test_the_board(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch):
    """A system with a missing year and a foreign id, one of raw LaTeX with a hostile name, and the baseline; and a
    test set that no system has read yet, which changes nothing."""
    monkeypatch.setattr("hmerbench.evaluation.scoreboard.board.YEARS", (*YEARS, "2031"))
    wrong = TRUTH | {"e0": "a + c", "stray": "x"}
    claim = [{"metric": "M", "source": "S", "rates": {"2014": 75.5}}]
    write_card(tmp_path, "comer", dict.fromkeys(YEARS, wrong), reported=claim)
    write_card(tmp_path, "part", {"2014": {"e1": "x ^ 2"}})
    raw = TRUTH | {"e2": r"\frac{12}b"}
    write_card(tmp_path, "raw", dict.fromkeys(YEARS, raw), tokenize=True, name=HOSTILE, training="more")
    board = make_board(read_cards(tmp_path / "cards"), tmp_path / "systems", archive)
    assert len(board.rows) == len(RULES) * 7 + 2  # of comer and raw over all years
    assert not any("tok:" in signature for signature in board.signatures.values())  # which is of raw alone
    rows = {key: board.row(key, "2014") for key in ("comer", "part", "raw")}
    counts = {key: [row[name] for name in (*COUNTS, "token_exact", "missing")] for key, row in rows.items() if row}
    assert counts == {"comer": [4, 3, 4, 4, 4, 3, 0], "part": [4, 1, 1, 1, 1, 1, 3], "raw": [4, 4, 4, 4, 4, 3, 0]}
    assert rows["comer"] and rows["raw"]
    assert (rows["comer"]["reported"], rows["comer"]["len10"], "difference" in rows["comer"]) == (75.5, 3, False)
    assert (rows["raw"]["difference"], rows["raw"]["p"], rows["raw"]["group"]) == (25.0, 0.391, "a")
    off = {key: (row["len10_short"], row["len10_long"]) for key, row in rows.items() if row}
    assert off == {"comer": (0, 0), "part": (3, 0), "raw": (0, 0)}  # a missing one is too short
    longer = TRUTH | {"e0": "a + b + c", "e1": "x"}
    write_card(tmp_path, "longer", dict.fromkeys(YEARS, longer))
    assert "| 6 (−3 +3) |" in markdown(make_board(read_cards(tmp_path / "cards"), tmp_path / "systems", archive))
    assert "part: has no predictions for 2016" in board.notes
    assert "comer, 2014: 1 prediction has no ground truth and is left out" in board.notes
    assert board.row("part", "2016") is None and board.row("part", TOGETHER) is None
    whole = board.row("raw", TOGETHER)
    assert whole and [whole[name] for name in (*COUNTS, "token_exact", "difference")] == [12, 12, 12, 12, 12, 9, 25.0]
    text = markdown(board)
    assert "<img" not in text and "](javascript" not in text and "| – | 1 M | 25.00 (4.6–69.9) | – | – |" in text
    assert text.index("Trained on CROHME alone") < text.index("Trained on more")
    assert text.count("–: without predictions of every set, a system has no rank.") == 1  # of one kind
    assert f"| part (2022) |{' – |' * 6}" in text[text.index("## By length") :]


def test_what_is_removed_of_one_system_is_said(tmp_path: Path, archive: Path):
    boxed = {key: rf"\boxed{{ {text} }}" for key, text in TRUTH.items()}
    for wrapped in (False, True):
        write_card(tmp_path, "mine", dict.fromkeys(YEARS, boxed), wrapped=wrapped)
        board = make_board(read_cards(tmp_path / "cards"), tmp_path / "systems", archive)
        note = "mine, 2014: wrap:removed is not on the card; add `wrapped: true`"
        assert (note in board.notes, "(`wrap:removed`)" in markdown(board)) == (not wrapped, wrapped)


@pytest.mark.parametrize(("raw", "tokenize"), [(2, False), (3, True)])
def test_a_card_says_what_most_predictions_are(tmp_path: Path, raw: int, tokenize: bool):
    texts = {f"e{k}": r"\frac{1}{2}" if k < raw else "x" for k in range(3)} | {"e3": r"\boxed{ x }", "e4": "x"}
    (tmp_path / "2014.json").write_text(json.dumps(texts))
    (tmp_path / "cards").mkdir()
    words = {"name": "M", "paper": "P", "year": 2024, "url": "https://example.org", "license": "MIT"}
    options = [*(f"--{name}={value}" for name, value in words.items()), "--trained-on=all", "--training=crohme"]
    options += [
        f"--cards={tmp_path}/cards",
        f"--systems={tmp_path}/systems",
        f"--predictions=2014={tmp_path}/2014.json",
    ]
    status, said, _ = run("add", "mine", *options)
    assert status == 0 and said.startswith(f"{raw} of 5 predictions are raw LaTeX: tokenize: {str(tokenize).lower()}\n")
    card = read_card(tmp_path / "cards/mine.yaml").card
    assert (card.tokenize, card.wrapped) == (tokenize, True)


def run(*given: object) -> tuple[int, str, str]:
    """Exit status, output and errors of the command."""
    done = hmerbench("scoreboard", *given)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("gone", ["comer", "second", "alone"])
def test_rows_are_kept_where_predictions_are_not_here(tmp_path: Path, archive: Path, gone: str):
    def score() -> tuple[int, str, list[bytes]]:
        folders = [f"--{name}={tmp_path / name}" for name in ("cards", "systems", "results")]
        status, _, error = run("score", *folders, f"--crohme={archive}")
        return status, error, [path.read_bytes() for path in sorted((tmp_path / "results").iterdir())]

    write_card(tmp_path, "comer", dict.fromkeys(YEARS, TRUTH | {"e0": "a"}))
    write_card(tmp_path, "second", dict.fromkeys(YEARS, TRUTH | {"e1": "x"}))
    write_card(tmp_path, "alone", dict.fromkeys(YEARS, TRUTH), training="more")
    status, error, committed = score()
    assert (status, error) == (0, "")

    (tmp_path / "systems" / gone).rename(tmp_path / "elsewhere")
    note = f"note: {gone}: its predictions are not here; its rows are kept as committed\n"
    assert score() == (0, note, committed)

    write_card(tmp_path, "new", dict.fromkeys(YEARS, TRUTH | {"e2": "x"}))
    status, error, (_, table, page) = score()
    untested = f"note: new: is not compared with {gone}; their predictions are not here\n"
    assert (status, error) == (0, note + (untested if gone != "alone" else ""))
    assert score()[2][1:] == [table, page]
    rows = list(csv.DictReader(table.decode().splitlines()))
    others = [",".join(row.values()) for row in rows if row["system"] != "new"]
    assert others == committed[1].decode().splitlines()[1:]
    new = next(row for row in rows if row["system"] == "new")
    assert (new["exact"], bool(new["group"]), bool(new["difference"])) == ("3", gone == "alone", gone != "comer")
    line = next(line for line in page.decode().splitlines() if line.startswith("| new"))
    assert line.endswith("| – | – |") == (gone == "comer")

    (tmp_path / "elsewhere").rename(tmp_path / "systems" / gone)
    (tmp_path / "systems" / gone / "2014.json").write_text("[]")
    assert "2014.json: its checksum is" in score()[1]
    (tmp_path / "systems" / gone / "2014.json").unlink()  # the other years are there
    assert f"{gone}/2014.json is not here; fetch it" in score()[1]


def test_a_card_needs_predictions_or_committed_rows(tmp_path: Path, archive: Path):
    write_card(tmp_path, "mine", {"2014": TRUTH})
    (card,) = read_cards(tmp_path / "cards")
    (tmp_path / "scoreboard.csv").write_text(f"{','.join(COLUMNS)}\n")
    with pytest.raises(InputError, match=r"mine: mine/2014.json is not here; fetch it from"):
        make_board([card], None, archive, tmp_path / "scoreboard.csv")
    (tmp_path / "scoreboard.csv").write_text("system,year\nmine,2014\n")
    with pytest.raises(InputError, match=r"scoreboard.csv: is damaged, or not a scoreboard; restore"):
        make_board([card], None, archive, tmp_path / "scoreboard.csv")


def test_other_scripts_are_refused(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LGEVAL_BIN", "/bin")
    with pytest.raises(InputError, match=r"^LGEVAL_BIN=/bin: .*; unset LGEVAL_BIN$"):
        make_board([], tmp_path, archive)


def test_predictions_of_another_year_are_named(tmp_path: Path, archive: Path):
    write_card(tmp_path, "mine", {"2014": TRUTH, "2016": {"other": "x"}})
    with pytest.raises(InputError, match=r"^mine, 2016: .*2016.json: none of its 1 ids .* is in"):
        make_board(read_cards(tmp_path / "cards"), tmp_path / "systems", archive)


def test_what_is_escaped():
    assert escaped(r"a|b<i>`\x`") == "a&#124;b&lt;i&gt;&#96;&#92;x&#96;"


def letters_of(errors: Mapping[str, list[int]], other: str = "") -> dict[str, str]:
    """The groups of systems with these errors on a hundred images; one may be of another kind."""
    kinds = {key: Card.model_construct(training="more" if key == other else "crohme") for key in errors}
    return groups_of([System(*named) for named in kinds.items()], errors, Images([f"{k:x}-" for k in range(100)]))


def test_groups():
    """b differs from c by chance only; both differ from a. One of another kind is not compared."""
    errors = {"a": [0] * 100, "b": [0] * 50 + [1] * 50, "c": [0] * 48 + [1] * 52, "other": [1] * 100}
    assert letters_of(errors, "other") == {"a": "a", "b": "b", "c": "b", "other": "a"}
    errors |= {"b": [0] * 97 + [1] * 3, "c": [0] * 93 + [1] * 7}
    assert letters_of(errors, "other") == {"a": "a", "b": "ab", "c": "b", "other": "a"}


def test_groups_are_told_apart_at_5_percent_after_holms_correction():
    """Student's p of 10 against 2 discordant expressions of 100 is 0.020, of 8 against 2 it is 0.057."""
    best, middle, last, near = (
        [0] * zeros + [1] * ones + [0] * (100 - zeros - ones) for zeros, ones in ((0, 2), (2, 9), (2, 10), (2, 8))
    )
    assert letters_of({"a": best, "b": middle, "c": last}) == {"a": "a", "b": "a", "c": "a"}  # 3 x 0.020
    assert letters_of({"a": best, "c": last}) == {"a": "a", "c": "b"}
    assert letters_of({"a": best, "d": near}) == {"a": "a", "d": "a"}


def test_predictions_become_a_card_and_the_card_a_row(tmp_path: Path, archive: Path):
    raw = {"e0": "a+b", "e1": "x^2", "e2": r"\frac{12}{b}"}
    for year in YEARS:
        rows = "".join(f'{key},"{text}"\n' for key, text in (TRUTH | raw).items())
        (tmp_path / f"{year}.csv").write_text(f"image,latex\n{rows}")
    given = [f"--predictions={year}={tmp_path / year}.csv" for year in YEARS]
    words = {"name": HOSTILE, "paper": "P", "year": 2024, "url": "https://example.org", "license": "MIT"}
    (tmp_path / "cards").mkdir()
    folders = [f"--cards={tmp_path / 'cards'}", f"--systems={tmp_path / 'systems'}"]
    options = [*folders, *(f"--{name}={value}" for name, value in words.items()), "--trained-on=all"]

    for name, folder, words in (
        ("Mine", "cards", "Mine: choose another name; it may have only lower-case letters"),
        ("mine", "nowhere", "nowhere: there is no such folder; make it"),
    ):
        status, _, error = run("add", name, *given, *options, "--training=more", f"--cards={tmp_path / folder}")
        assert status == 1 and error.count("\n") == 1 and words in error
    status, _, error = run("add", "mine", *given, *options, "--training=nothing")
    assert status == 1 and error.count("\n") == 1 and "training: Input should be" in error
    assert not list((tmp_path / "cards").iterdir()) and not (tmp_path / "systems").exists()
    (tmp_path / "systems").write_text("in the way of the folder")
    assert run("add", "mine", *given, *options, "--training=more")[0] == 1
    (tmp_path / "systems").unlink()  # and another try finds no card in its way
    assert run("add", "mine", *given, *options, "--training=more")[0] == 0
    assert read_card(tmp_path / "cards/mine.yaml").card.tokenize
    status, _, error = run("add", "mine", *given, *options, "--training=more")
    assert status == 1 and "exists; choose another name" in error
    assert run("check", *folders) == (0, "mine: 3 files as on the card\n", "")
    status, _, error = run("check", f"--cards={tmp_path / 'nowhere'}")
    assert (status, error) == (1, f"error: {tmp_path / 'nowhere'}: the folder holds no cards (ID.yaml)\n")
    assert run("score", *folders, f"--crohme={archive}", f"--results={tmp_path / 'results'}")[0] == 0
    with (tmp_path / "results/scoreboard.csv").open() as file:
        exact = [row["exact"] for row in csv.DictReader(file)]
    assert exact == [*["4", "4", "3", "3"] * 3, "12"]  # the truth follows the paper's edition

    (tmp_path / "2014.csv").write_text("id,pred\ne0,a\ne0,b\n")
    status, _, error = run("add", "twice", given[0], *options, "--training=more")
    assert status == 1 and "the id e0 occurs twice" in error
    status, _, error = run("add", "twice", "--predictions=x", *options, "--training=more")
    assert status == 1 and "must be YEAR=FILE" in error


# --- what is committed ------------------------------------------------------------------------------------


def committed() -> dict[tuple[str, str, str, str], dict[str, str]]:
    with (ROOT / "results/scoreboard.csv").open(encoding="utf-8") as file:
        return {(row["system"], row["year"], row["reading"], row["edition"]): row for row in csv.DictReader(file)}


def test_the_committed_board_has_every_card_and_rule():
    expected = {
        (system.key, year, rules.reading.name, rules.edition.name)
        for system in read_cards()
        for year in system.card.files
        for rules in RULES
    }
    paper = ("pandoc-1.19", "crohme2019")
    expected |= {(system.key, TOGETHER, *paper) for system in read_cards() if set(YEARS) <= system.card.files.keys()}
    assert committed().keys() == expected
    text = (ROOT / "results/scoreboard.md").read_text(encoding="utf-8")
    assert all(escaped(system.card.name) in text for system in read_cards())


def test_our_own_rows_are_those_of_the_committed_scores():
    rows, compared = committed(), 0
    for system in read_cards():
        for year, file in system.card.files.items():
            score = ROOT / file.path.replace("predictions", "scores").replace(".tsv", ".json")
            if score.exists():
                row = rows[system.key, year, "pandoc-1.19", "crohme2019"]
                counted = json.loads(score.read_text())
                assert all(int(row[name]) == counted[name] for name in (*COUNTS, "token_exact", "neutral"))
                compared += 1
    assert compared >= 6


@pytest.mark.skipif(not SYSTEMS.is_dir(), reason=f"no folder of systems' predictions {SYSTEMS}")
def test_others_rows_are_counted_again(crohme: Path, monkeypatch: pytest.MonkeyPatch):
    """Systems mostly read the same, which is converted once."""
    monkeypatch.setattr(outcome, "converted", cache(outcome.converted))
    rows, compared = committed(), 0
    systems = [system for system in read_cards() if system.card.url and system.complete(SYSTEMS)]
    files = {system.key: dict(system.files(SYSTEMS)) for system in systems}
    for year in YEARS:
        truth = read_ground_truth(f"{crohme}:{year}")
        graphs = truth.graphs()
        for system in systems:
            if year in files[system.key]:
                texts, _, _ = matched(files[system.key][year], truth, system.card.tokenize)
                for rules in RULES[:2]:
                    row = rows[system.key, year, rules.reading.name, rules.edition.name]
                    counts = in_process(texts, graphs, rules).counts
                    assert {name: int(row[name]) for name in COUNTS} == {name: counts[name] for name in COUNTS}
                    compared += 1
    assert compared >= 18


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: " + "[" * 3000, r"sys.yaml: this is not YAML \(line 1: more than 40 levels"),
        ("{a: " * 3000, r"sys.yaml: this is not YAML \(line 1: more than 40 levels"),
        ("year: 2025\nx: 2014-13-01\n", r"sys.yaml: this is not YAML \(line 2: 2014-13-01: month must be"),
        ("name: A\nname: B\n", r"sys.yaml: this is not YAML \(line 2: the key 'name' occurs twice"),
        ("a: &a [x]\nb: *a\n", r"sys.yaml: this is not YAML \(line 2: an alias"),
        ("a: !!python/name:os.system x", r"sys.yaml: this is not YAML \(could not determine"),
        ("- a", "sys.yaml: the card: "),
    ],
)
def test_a_card_is_read_strictly(tmp_path: Path, text: str, fault: str):
    (tmp_path / "sys.yaml").write_text(text)
    with pytest.raises(InputError, match=fault) as error:
        read_cards(tmp_path)
    assert "\n" not in str(error.value)


def test_a_card_may_have_reported_numbers_alone(tmp_path: Path):
    told = {"metric": "token match", "source": "the paper", "rates": {"2014": 62.68}}
    path = write_card(tmp_path, "mine", {}, status="reported", reported=[told])
    assert read_card(path).card.status == "reported"
    with pytest.raises(InputError, match="it needs status: reported and numbers"):
        read_card(write_card(tmp_path, "other", {}, status="reported"))


def test_the_leaderboard_says_of_every_system_what_its_card_and_the_table_say():
    content = json.loads((ROOT / "results/leaderboard.json").read_text("utf-8"))
    with (ROOT / "results/scoreboard.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["missing"]]  # under the paper's rules
    counted = {(s["key"], year): c for s in content["systems"] for year, c in s["counted"].items() if year != TOGETHER}
    assert len(counted) == len(rows) > 30
    for row in rows:
        found = counted[row["system"], row["year"]]
        assert [str(found[name]) for name in (*COUNTS, "neutral")] == [row[name] for name in (*COUNTS, "neutral")]
        assert int(row["exact"]) <= int(row["neutral"]) <= content["ceilings"][row["year"]]["n"]
    cards = {system.key: system.card for system in read_cards()}
    assert {s["key"]: (s["status"], s["selection"], s["convention"]) for s in content["systems"]} == {
        key: (card.status, card.selection, card.convention) for key, card in cards.items()
    }
    assert [row["exact"] for row in content["ceilings"].values()] == [895, 1124, 1182]
