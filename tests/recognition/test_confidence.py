"""What the search tells of a reading, and the share of such readings that are right."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hmerbench.benchmarks.recognition.confidence import FAR, FEATURES, Calibration, Evidence, evidence
from hmerbench.benchmarks.recognition.recognizer import Recognizer, calibration
from hmerbench.models.inference.hypothesis import Hypothesis
from tests.helpers.pictures import INK

A, B = (5, 6, 7), (5, 6)  # readings
FOUND = [  # scores are log-probabilities divided by (tokens + 1) ** alpha, here alpha = 1
    Hypothesis(A, -0.5, -0.2, -0.3, "l2r", spread=0.4),
    Hypothesis(A, -0.5, -0.3, -0.2, "r2l", spread=0.1),
    Hypothesis(B, -2.0, -0.8, -1.2, "l2r"),
]
OF_A = Evidence(logp=-1.0, steps=4, margin=2.0, apart=0.4, spread=0.4, both=1.0)
CASES = {
    "two readings": (FOUND, 1.0, [OF_A, Evidence(-3.0, 3, -2.0, 1.2, 0.0, 0.0)]),
    "one reading": (FOUND[:2], 1.0, [replace(OF_A, margin=FAR)]),
    "found once": (FOUND[1:], 1.0, [Evidence(-1.0, 4, 2.0, 0.4, 0.1, 0.0), Evidence(-3.0, 3, -2.0, 1.2, 0.0, 0.0)]),
    "scores not divided": (FOUND[:1], 0.0, [Evidence(-0.25, 4, FAR, 0.1, 0.4, 0.0)]),
    "one direction": ([Hypothesis(A, -0.5, -0.5, 0.0, "l2r")], 1.0, [Evidence(-2.0, 4, FAR, 0.0, 0.0, 1.0)]),
    "by tokens": ([Hypothesis(A, -1.0, -0.4, -0.6, "l2r", 3)], 1.0, [Evidence(-1.5, 4, FAR, 0.6, 0.0, 0.0)]),
    "none": ([], 1.0, []),
}


@pytest.mark.parametrize("name", CASES)
def test_evidence_of_every_reading(name: str) -> None:
    hypotheses, alpha, expected = CASES[name]
    found = [*evidence(hypotheses, alpha)]
    assert [h.ids for h, _ in found] == [*dict.fromkeys(h.ids for h in hypotheses)]
    for (_, ours), wanted in zip(found, expected, strict=True):
        assert vars(ours) == pytest.approx(vars(wanted))


def test_probability_per_token() -> None:
    assert Evidence(logp=4 * math.log(0.9), steps=4).per_token == pytest.approx(0.9)


@pytest.mark.parametrize(("odds", "share"), [(0.0, 0.5), (math.log(3), 0.75), (1e9, 1.0), (-1e9, 0.0)])
def test_a_regression_gives_the_share_of_its_odds(odds: float, share: float) -> None:
    assert Calibration(odds, {})(OF_A) == pytest.approx(share)
    assert Calibration(0.0, {"logp": -odds})(replace(OF_A, logp=-1.0)) == pytest.approx(share)


def test_the_committed_regression_trusts_what_the_search_is_sure_of() -> None:
    fitted = calibration()
    assert {*fitted.weights} <= {*FEATURES}
    sure = Evidence(logp=-0.2, steps=4, margin=9.0, apart=0.05, spread=0.05, both=1.0)
    assert fitted(sure) > 0.8
    assert fitted(replace(sure, logp=-6.0)) < fitted(sure)
    assert fitted(Evidence(logp=-8.0, steps=6, margin=0.1, apart=3.0, spread=2.0, both=0.0)) < 0.2


def test_sizes_of_the_image_differ_in_what_they_read(medium: Recognizer) -> None:
    """Which the search notes, and one size has nothing to differ from."""
    several = Recognizer(medium.model, medium.config.changed({"search.scales": [1.0, 1.3]}))(255 - INK).nbest
    assert all(0 < candidate.spread < 50 for candidate in several)
    assert several[0].spread < np.median([candidate.spread for candidate in several])
    alone = Recognizer(medium.model, medium.config.changed({"search.scales": [1.0]}))(255 - INK)
    assert {candidate.spread for candidate in alone.nbest} == {0.0}
    assert {h.spread for h in several} == {candidate.evidence.spread for candidate in several}
