"""The language model's share in the ranking of hypotheses, and its weights file."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from hmerbench.benchmarks.config import Language, Search
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import digest_of
from hmerbench.benchmarks.recognition.predict import Lines, with_language_model
from hmerbench.models.files import CheckpointError
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.language import (
    LINE_END,
    UNKNOWN,
    LanguageModel,
    Lexicon,
    load_language_model,
    pack_language_model,
)
from hmerbench.models.settings import LanguageConfig
from hmerbench.models.vocab import SPECIAL, Vocabulary
from hmerbench.models.weights import pack_tensors, read_tensors

WORDS = [UNKNOWN, LINE_END, *(word for word in Vocabulary().words if word not in SPECIAL)]


def language_model(words: list[str]) -> LanguageModel:
    torch.manual_seed(3)
    model = LanguageModel(LanguageConfig(character_size=2, widths=3, filters=1, hidden=3), Lexicon(words))
    model.initialize(0.7)
    return model.eval()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "lm.safetensors"
    path.write_bytes(pack_language_model(language_model(WORDS)))
    return path


def hypothesis(latex: str, score: float) -> Hypothesis:
    return Hypothesis(tuple(Vocabulary().encode(latex.split())), score, score / 2, score / 2, "l2r")


def test_a_line_has_the_probability_of_its_words_one_after_the_other():
    """Whatever other lines are read beside it; the unknown word stands for any that the lexicon lacks."""
    model, lines = language_model(WORDS), [["x"], [], ["\\frac", "{", "x", "}", "elsewhere"]]
    vectors = model.vectors(torch.arange(len(WORDS)))
    for line, together in zip(lines, model.of_lines(lines, vectors), strict=True):
        log_p, state, words = 0.0, model.initial_state(1), [LINE_END, *line, LINE_END]
        numbers = [WORDS.index(word) if word in WORDS else 0 for word in words]
        for word, following in pairwise(numbers):
            hidden, state = model.run(vectors[word][None, None], state)
            log_p += float(model.softmax(hidden).log_softmax(-1)[0, 0, following].detach())
        assert together == pytest.approx(log_p, abs=1e-4)


def test_hypotheses_are_ranked_by_both_models(weights):
    vocabulary = Vocabulary()
    lines = Lines(Language(weights=str(weights)), vocabulary)
    listed = [hypothesis("x + 1", -0.1), hypothesis("\\alpha", -0.2)]
    log_p = lines([["x", "+", "1"], ["\\alpha"]])
    for weight, length, alpha in ((0.0, 0.0, 1.0), (2.0, 0.0, 1.0), (0.1, -0.3, 0.5)):
        search = Search(alpha=alpha, language=Language(weights="lm", weight=weight, length=length))
        totals = [
            h.score + weight * p / (len(h.ids) + 1) ** alpha + length * len(h.ids)
            for h, p in zip(listed, log_p, strict=True)
        ]
        found = with_language_model(listed, lines, search, vocabulary)
        assert [h.score for h in found] == pytest.approx(sorted(totals, reverse=True))
        assert {h.ids: h.forward for h in found} == {h.ids: h.forward for h in listed}
    assert totals[1] > totals[0] and found[0].ids == listed[1].ids
    assert with_language_model([], lines, search, vocabulary) == []


def test_weights_are_read_back(weights, tmp_path):
    model = load_language_model(weights)
    assert pack_language_model(model) == weights.read_bytes() and not model.training


def test_weights_that_do_not_fit_are_one_clear_line(weights, tmp_path):
    header, tensors = read_tensors(weights)
    other = tmp_path / "other.safetensors"
    for change, message in (
        ({"format": "hmerbench-weights-1"}, "not a language model's weights"),
        ({"model": {"hiden": 3}}, "its configuration is unknown"),
        ({"model": header["model"] | {"hidden": 4}}, "do not fit the network"),
    ):
        other.write_bytes(pack_tensors(tensors, header | change))
        with pytest.raises(CheckpointError, match=message) as caught:
            load_language_model(other)
        assert str(caught.value).startswith(str(other)) and "\n" not in str(caught.value)
    other.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        load_language_model(other)
    with pytest.raises(CheckpointError, match="no such weights file"):
        load_language_model(tmp_path / "nowhere")


def test_a_language_model_of_other_words_is_refused(weights):
    weights.write_bytes(pack_language_model(language_model([UNKNOWN, LINE_END, "the", "\\alpha"])))
    with pytest.raises(UserError, match="this language model lacks 109 of the recognizer's 110 symbols"):
        Lines(Language(weights=str(weights)), Vocabulary())
    weights.write_bytes(pack_language_model(language_model([word for word in WORDS if word != LINE_END])))
    with pytest.raises(UserError, match="this language model knows no ends of lines"):
        Lines(Language(weights=str(weights)), Vocabulary())


def test_another_file_than_the_settings_name_is_refused(weights):
    language = Language(weights=str(weights), digest=digest_of(weights), weight=0.5)
    Lines(language, Vocabulary())
    weights.write_bytes(pack_language_model(language_model([*WORDS, "more"])))
    with pytest.raises(UserError, match="the run was made with another language model"):
        Lines(language, Vocabulary())
