r"""A comparison in which \limits makes no difference, beside the official one in which it does."""

from pathlib import Path

import pytest

from hmerbench.evaluation import InputError
from hmerbench.evaluation.lgeval.metrics import compare_graphs
from hmerbench.evaluation.scoring.conventions import neutral
from hmerbench.evaluation.scoring.score import evaluate
from hmerbench.evaluation.symlg import from_latex, rules

PAIRS = [  # prediction, truth, errors as written, errors with neutral limits
    (r"\sum _ { i = 1 } ^ { n } x ^ 2", r"\sum \limits _ { i = 1 } ^ { n } x ^ 2", 16, 0),
    (r"\sum \limits _ { i } x", r"\sum _ { i } x", 4, 0),
    (r"\int \limits _ a ^ b x", r"\int _ a ^ b x", 8, 0),
    (r"\lim \limits _ { \sum \limits _ a } x", r"\lim _ { \sum _ a } x", 8, 0),
    (r"\frac { \lim \limits _ a x } { 2 }", r"\frac { \lim _ a x } { 2 }", 4, 0),
    (r"\max \limits _ a x", r"\max _ a x", 4, 0),
    (r"\sum \limits _ i x", r"\sum \limits _ j x", 1, 1),
    (r"\sum _ i x", r"\sum ^ i x", 4, 4),
    (r"\sum \limits _ i x", r"\sum ^ i x", 4, 4),
    (r"x \limits _ a", r"x _ a", 4, 4),
    (r"\frac { a } { b }", r"\frac { b } { a }", 2, 2),
    (r"\overset { a } { x }", r"x ^ a", 4, 4),
    (r"x ^ { \frac { a } { b } }", r"x ^ { \frac { a } { b } }", 0, 0),
]


@pytest.mark.parametrize(("prediction", "truth", "official", "expected"), PAIRS)
def test_limits_make_no_difference(prediction: str, truth: str, official: int, expected: int):
    graphs = [from_latex(prediction), from_latex(truth)]
    assert compare_graphs(graphs[0], graphs[1]).metrics["D_B"] == official
    assert compare_graphs(neutral(graphs[0]), neutral(graphs[1])).metrics["D_B"] == expected


def test_a_score_counts_both_readings(tmp_path: Path):
    """As a second scoring with neutral limits counts them, by the scripts as in process; missing and wrong ones too."""
    truth = {f"e{k}": (true.split(), predicted) for k, (predicted, true, _, _) in enumerate(PAIRS)}
    truth["none"] = ([r"\sum", "_", "i", "x"], "")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/caption.txt").write_text("".join(f"{k}\t{' '.join(true)}\n" for k, (true, _) in truth.items()))
    predictions = {key: predicted for key, (_, predicted) in truth.items() if predicted}
    expected = evaluate(predictions, f"{tmp_path}:set", rules=rules(neutral=True)).score.exact
    inside = evaluate(predictions, f"{tmp_path}:set").score
    outside = evaluate(predictions, f"{tmp_path}:set", workdir=tmp_path / "work").score
    assert inside == outside and (inside.exact, inside.neutral) == (1, expected) == (1, 7)
    (tmp_path / "set/caption.txt").write_text("a\tx\nb\ty\n")  # nothing in it takes limits
    plain = evaluate({"a": "x", "b": "x"}, f"{tmp_path}:set").score
    assert (plain.exact, plain.neutral) == (1, 1)


def test_the_signature_names_it_and_the_official_score_stays(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/caption.txt").write_text("a\t\\sum \\limits _ i x\nb\tx\n")
    (tmp_path / "p.csv").write_text("id,pred\na,\\sum _ i x\nb,x\n")
    scores = [
        evaluate(tmp_path / "p.csv", f"{tmp_path}:mine", rules=rules(neutral=chosen)).score for chosen in (False, True)
    ]
    assert [(score.exact, score.neutral) for score in scores] == [(1, 2), (2, None)]
    assert [score.signature.count("|lgeval:0.3.5|limits:neutral|") for score in scores] == [0, 1]
    with pytest.raises(InputError, match="leave out workdir or limits"):
        evaluate(tmp_path / "p.csv", f"{tmp_path}:mine", workdir=tmp_path / "work", rules=rules(neutral=True))
