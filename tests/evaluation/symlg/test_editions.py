"""Readings and editions of the official scorer: the tools' own conversions of invented expressions.

tests/fixtures/official_conversions.jsonl holds, for every string, the symbols (path, label) and relations that the
official conversion gives: `default` is texmath 0.9.4.4 (pandoc 1.19) and convert2symLG 1.4; the others, where they
differ, are named by reading and edition (pandoc 2.17.1.1, convert2symLG 1.5). null: it does not convert.
"""

import json
from pathlib import Path

import pytest

import hmerbench
from hmerbench.evaluation import InputError
from hmerbench.evaluation.commands import editions, under_all_rules
from hmerbench.evaluation.lgeval.metrics import compare_graphs
from hmerbench.evaluation.scoring.conventions import ONE_CHILD, TWO_CHILDREN, UNDECIDED, convention
from hmerbench.evaluation.scoring.inputs import GroundTruth, matched
from hmerbench.evaluation.scoring.outcome import in_process, run_scripts
from hmerbench.evaluation.scoring.score import fields_of, signature_of
from hmerbench.evaluation.symlg import EDITIONS, READINGS, Rules, Unconverted, from_latex, lg_text, rules
from hmerbench.evaluation.symlg.formula import prediction_file
from tests.helpers.graphs import content
from tests.helpers.paths import FIXTURES
from tests.helpers.scored_files import lg_folder

CASES = [json.loads(line) for line in (FIXTURES / "official_conversions.jsonl").read_text("utf-8").splitlines()]


def content_of(latex: str, chosen: Rules) -> list | None:
    try:
        return json.loads(json.dumps(content(from_latex(latex, chosen))))
    except Unconverted:
        return None


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("reading", READINGS)
def test_the_official_conversion(reading: str, edition: str):
    chosen = rules(reading, edition)
    key = f"{reading} {'current' if chosen.edition.conv == '1.5' else 'crohme2019'}"
    wrong = [case["latex"] for case in CASES if content_of(case["latex"], chosen) != case.get(key, case["default"])]
    assert len(CASES) > 290 and not wrong


@pytest.mark.parametrize("reading", READINGS)
def test_the_official_conversion_of_commands(reading: str):
    """tests/fixtures/official_commands.jsonl: by reading (pandoc 2.17's where it differs), with convert2symLG 1.4."""
    cases = [json.loads(line) for line in (FIXTURES / "official_commands.jsonl").read_text("utf-8").splitlines()]
    wrong = [c["latex"] for c in cases if content_of(c["latex"], rules(reading)) != c.get(reading, c["pandoc-1.19"])]
    assert len(cases) > 300 and not wrong
    assert sum("pandoc-2.17" in case for case in cases) > 40


def test_the_cases_tell_the_rules_apart():
    for other in ("pandoc-2.17 crohme2019", "pandoc-1.19 current", "pandoc-2.17 current"):
        assert sum(other in case for case in CASES) > 20


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"pandoc-3: .*pandoc-1.19, pandoc-2.17"):
        rules("pandoc-3")
    with pytest.raises(InputError, match=r"old: .*crohme2019, mixed, current"):
        rules(edition="old")


def test_scripts_and_process_agree_under_every_rule(tmp_path: Path):
    latex = {f"e{k}": case["latex"] for k, case in enumerate(CASES[:60])}
    texts = {key: prediction_file(key, text.split()) for key, text in latex.items()}
    truth = {key: lg_text(from_latex("a + b"), key) for key in texts}
    for number, chosen in enumerate([rules(), rules("pandoc-2.17", "current")]):
        found = run_scripts(texts, truth, tmp_path / str(number), chosen)
        assert found == in_process(texts, GroundTruth(truth, None).graphs(), chosen) and found.reasons


def test_the_convention_of_a_truth():
    expression = r"\sqrt { a b } + \sqrt [ 3 ] { a b } + \sqrt { a }"
    assert convention([from_latex(expression)]) == (TWO_CHILDREN, {TWO_CHILDREN: 1})
    assert convention([from_latex(expression, rules(edition="current"))]) == (ONE_CHILD, {ONE_CHILD: 1})
    assert convention([from_latex("a")])[0] == UNDECIDED


def test_the_table_of_editions(tmp_path: Path):
    latex = {"e0": r"\sqrt { a b }", "e1": "x"}
    lines = (json.dumps({"id": key, "tokens": text}) + "\n" for key, text in latex.items())
    (tmp_path / "found.jsonl").write_text("".join(lines))
    spec = str(lg_folder(tmp_path / "gt", latex))
    texts, truth, _ = matched(tmp_path / "found.jsonl", spec)
    found = {each: (of.counts["n"], of.counts["exact"]) for each, of in under_all_rules(texts, truth, spec).items()}
    assert found == {rules(r, e): (2, 1 if e == "current" else 2) for e in EDITIONS for r in READINGS}


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("reading", READINGS)
def test_a_truth_made_from_captions_follows_the_rules_of_the_predictions(tmp_path: Path, reading: str, edition: str):
    latex = {"root": r"\sqrt { x + 1 }", "number": "12 + y", "bracket": "( a ) ^ { 2 }"}
    assert hmerbench.score(latex, latex, reading=reading, edition=edition).score.exact == 3
    (tmp_path / "mine/test").mkdir(parents=True)
    (tmp_path / "mine/test/caption.txt").write_text("".join(f"{key}\t{text}\n" for key, text in latex.items()))
    spec = f"{tmp_path}/mine:test"
    assert hmerbench.score(latex, spec, reading=reading, edition=edition).score.exact == 3
    texts, truth, _ = matched(latex, spec)
    assert under_all_rules(texts, truth, spec)[rules(reading, edition)].counts["exact"] == 3


def test_a_caption_that_another_reading_refuses_is_named_with_it():
    with pytest.raises(InputError, match=r"^ground truth \(pandoc-2.17\): a does not convert to symLG"):
        hmerbench.score({"a": "x"}, {"a": r"\frac \{ b"}, reading="pandoc-2.17")


def test_a_reading_that_refuses_a_caption_has_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine/test").mkdir(parents=True)
    (tmp_path / "mine/test/caption.txt").write_text("a\t\\frac \\{ b\nb\tx\n")
    (tmp_path / "found.jsonl").write_text('{"id": "b", "tokens": "x"}\n')
    editions(tmp_path / "found.jsonl", f"{tmp_path}/mine:test")
    table, notes = capsys.readouterr()
    assert table.count("pandoc-1.19") == 3 and "pandoc-2.17" not in table and "a does not convert" in notes


def test_one_shared_label_is_enough_for_lgeval_035_only():
    """{ x ^ 2 } ^ 3 puts two symbols on one path; LgEval 0.3.8 requires both."""
    found, true = from_latex("{ x ^ 2 } ^ 3"), from_latex("x ^ 2")
    assert compare_graphs(found, true, EDITIONS["crohme2019"].inter).metrics["D_B"] == 0
    assert compare_graphs(found, true, EDITIONS["current"].inter).metrics["D_B"] == 1


def test_signatures_are_parsed_back():
    named = {"set": "crohme2014", "search": "joint10", "select": "2014"}
    signature = signature_of(986, named, rules("pandoc-2.17", "current"))
    assert signature == (
        "ExpRate|set:crohme2014|n:986|metric:symlg|conv:1.5|pandoc:2.17|lgeval:0.3.8|search:joint10|select:2014|v:2"
    )
    assert "|".join(["ExpRate", *map(":".join, fields_of(signature).items())]) == signature
    with pytest.raises(InputError, match="not the signature"):
        fields_of("BLEU|v:1")


def test_digits_count_one_by_one_where_an_edition_splits_them():
    digits = "1" * 10_001
    assert from_latex(digits).objects
    with pytest.raises(Unconverted, match="more than 10000 symbols"):
        from_latex(digits, rules(edition="current"))
