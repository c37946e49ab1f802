"""What is predicted of what the search found."""

from dataclasses import replace

import pytest
import torch

from benchmarks.config import Config
from benchmarks.data.batching import evaluation_batches
from benchmarks.data.crohme import Sample, open_archive
from benchmarks.predict import ranked, recognise
from evaluation.symlg import Unconverted, from_latex
from models import CoMER, Hypothesis, Vocabulary
from tests.tiny import tiny_archive, tiny_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[CoMER, Config, list[Sample]]:
    """A network that has learnt nothing, so that most of what it reads is no expression."""
    folder = tiny_archive(tmp_path_factory.mktemp("tiny"))
    config = tiny_config(folder, {"search": {"beam_size": 10, "max_len": 4}})
    torch.manual_seed(3)
    model, words = CoMER(config.model).eval(), Vocabulary().ids
    with torch.no_grad():  # its favourites are chance: let it like what does not convert
        model.decoder.proj.bias[[words["{"], words["}"], words["x"]]] += torch.tensor([1.0, 1.0, 2.0])
    return model, config, open_archive(folder).samples("2014")


def changed(config: Config, **search: object) -> Config:
    return config.model_copy(update={"search": config.search.model_copy(update=search)})


def converts(hypothesis: Hypothesis) -> bool:
    try:
        from_latex(Vocabulary().decode(hypothesis.ids))
    except Unconverted:
        return False
    return True


def test_the_best_hypothesis_that_converts_is_predicted(untrained) -> None:
    model, config, samples = untrained
    plain = recognise(model, config, samples, CPU, "2014")
    chosen = recognise(model, changed(config, convertible=True), samples, CPU, "2014")
    moved = 0
    for name, (tokens, hypotheses) in chosen.items():
        best = next(h for h in plain[name][1] if converts(h))
        assert hypotheses == [best, *(h for h in plain[name][1] if h is not best)]
        assert tokens == tuple(Vocabulary().decode(best.ids))
        moved += hypotheses != plain[name][1]
    assert moved > 0  # or nothing was to be chosen


def test_where_nothing_converts_the_best_stays(untrained) -> None:
    config = changed(untrained[1], convertible=True)
    brace = Hypothesis((Vocabulary().ids["{"],), -1.0, -0.5, -0.5, "l2r")
    both = [brace, replace(brace, score=-2.0)]
    assert ranked(both, config) == both
    assert ranked([], config) == []


def test_of_several_scales_the_best_score_decides(untrained) -> None:
    model, config, samples = untrained
    alone = {scale: recognise(model, changed(config, scales=(scale,)), samples, CPU, "2014") for scale in (1.0, 1.5)}
    both = recognise(model, changed(config, scales=(1.0, 1.5)), samples, CPU, "2014")
    for name, (tokens, hypotheses) in both.items():
        everything = alone[1.0][name][1] + alone[1.5][name][1]
        assert hypotheses == sorted(everything, key=lambda h: -h.score)
        assert tokens == tuple(Vocabulary().decode(max(everything, key=lambda h: h.score).ids))
    assert alone[1.0] != alone[1.5]


@pytest.mark.parametrize("order", ["area", "shape"])
def test_images_are_searched_at_the_scale(untrained, order: str) -> None:
    _, config, samples = untrained
    batching = config.training.batching.model_copy(update={"order": order})
    config = config.model_copy(update={"training": config.training.model_copy(update={"batching": batching})})
    for batch in evaluation_batches(samples, config, 2, 1.5):
        for name, mask in zip(batch.ids, batch.mask, strict=True):
            height, width = next(s.image.shape for s in samples if s.id == name)
            assert int((~mask).sum()) == round(1.5 * height) * round(1.5 * width)


def test_the_signature_names_the_search(untrained) -> None:
    _, config, _ = untrained
    assert config.search.name == "joint10"
    assert changed(config, convertible=True).search.name == "joint10+convertible"
    assert changed(config, scales=(1.0, 1.3)).search.name == "joint10+scales1,1.3"
    assert changed(config, scales=(1.0,), convertible=False).digest == config.digest  # runs keep their names
