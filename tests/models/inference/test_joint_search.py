"""The joint search against the authors' results (tests/fixtures/parity, or PARITY_DIR) and the plain search."""

import copy
from dataclasses import FrozenInstanceError, replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hmerbench.benchmarks.performance.plain import plain_search
from hmerbench.models.comer import CoMER
from hmerbench.models.coverage import AttentionRefinement
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.inference.reading import IncrementalDecoder
from hmerbench.models.inference.searcher import searcher
from hmerbench.models.network import build
from hmerbench.models.settings import NETWORKS, CoMERSettings
from hmerbench.models.vocab import EOS, PAD, SOS, Vocabulary
from tests.helpers.comer import VARIANTS, arrays, authors_model, sidecar
from tests.helpers.networks import padded
from tests.helpers.parity import alone
from tests.helpers.search import search

TOLERANCE = 1e-5  # of the authors' float32 scores

Images = tuple[Tensor, Tensor]


def searched(hypotheses: list[Hypothesis], direction: str) -> list[tuple[tuple[int, ...], float, float]]:
    return sorted((h.ids, h.forward, h.reverse) for h in hypotheses if h.direction == direction)


def assert_same(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis]], tolerance: float) -> None:
    """Per image the same best sequence, and per direction the same hypotheses with the same scores."""
    assert len(ours) == len(theirs)
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual[0].ids == expected[0].ids
        assert actual[0].score == pytest.approx(expected[0].score, abs=tolerance)
        assert [h.score for h in actual] == sorted((h.score for h in actual), reverse=True)
        for direction in ("l2r", "r2l"):
            pairs = zip(searched(actual, direction), searched(expected, direction), strict=True)
            for (ids, *scores), (expected_ids, *expected_scores) in pairs:
                assert ids == expected_ids and scores == pytest.approx(expected_scores, abs=tolerance)


# --------------------------------------------------------------------------------- the authors' results


def authors_images() -> tuple[Images, list[Images]]:
    """The batch, and each image alone without padding."""
    a = arrays("inputs")
    each = [alone(a["images"], a["sizes"], i) for i in range(len(a["images"]))]
    return (a["images"], a["mask"].bool()), each


def authors_hypotheses(variant: str, key: str) -> list[list[Hypothesis]]:
    """In the form that a search returns."""
    a = {k.removeprefix(key): v.tolist() for k, v in arrays(f"{variant}_beam").items() if k.startswith(key)}
    results = []
    for i, tokens in enumerate(a["hyp_tokens"]):
        hypotheses = []
        for n, ids in enumerate(tokens):
            forward, reverse = a["hyp_fwd_score"][i][n], a["hyp_rev_score"][i][n]
            direction = "l2r" if n < len(tokens) // 2 else "r2l"
            ids = tuple(ids[: a["hyp_len"][i][n]])
            hypotheses.append(Hypothesis(ids, forward + reverse, forward, reverse, direction))
        hypotheses.sort(key=lambda h: h.score, reverse=True)
        assert hypotheses[0].ids == tuple(a["best_tokens"][i][: a["best_len"][i]])
        assert hypotheses[0].score == pytest.approx(a["best_score"][i], abs=TOLERANCE)
        results.append(hypotheses)
    return results


def authors_options(variant: str, config: str) -> SearchOptions:
    return SearchOptions(**sidecar(f"{variant}_beam")["beam_configs"][config])


@pytest.mark.parametrize("config", ["main", "short", "alt"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_finds_what_the_authors_found(variant: str, config: str) -> None:
    model, options = authors_model(variant), authors_options(variant, config)
    batch, each = authors_images()
    assert_same(search(model, *batch, options), authors_hypotheses(variant, f"{config}/batch/"), TOLERANCE)
    singly = [search(model, *image, options)[0] for image in each]
    assert_same(singly, authors_hypotheses(variant, f"{config}/alone/"), TOLERANCE)


def test_bfloat16_on_the_cpu() -> None:
    model, options = authors_model("comer-fusion"), authors_options("comer-fusion", "main")
    batch, _ = authors_images()
    exact = search(model, *batch, options)
    with torch.autocast("cpu", torch.bfloat16):
        rough = search(model, *batch, options)
    for rounded, expected in zip(rough, exact, strict=True):
        assert rounded[0].score == pytest.approx(expected[0].score, abs=0.05)
        assert rounded[0].score != expected[0].score  # it did run in bfloat16


# ------------------------------------------------------------------------------------- random networks


@cache
def random_model(seed: int, **changes: Any) -> CoMER:
    """A float64 network biased towards ending, against repeating a token, and otherwise towards none."""
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "growth_rate": 4, "num_layers": 1, "nhead": 2, "dim_feedforward": 24, "dc": 3}
    words = Vocabulary(Vocabulary().words[:24])
    model = CoMER(CoMERSettings(**{**sizes, **changes}), words).double().eval()
    output = model.decoder.proj
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        output.weight.mul_(2).sub_(next(model.decoder.word_embed.parameters()))
        logits = model.decoder(*model.encode(*random_images(seed)), torch.randint(24, (60, 20)))
        output.bias.sub_(logits.mean((0, 1)))
        output.bias[[SOS, EOS]] += 1
    return model


def random_images(seed: int) -> Images:
    generator, sizes = torch.Generator().manual_seed(seed), ((40, 70), (33, 100), (17, 20))
    images, mask = padded([torch.rand(size, generator=generator, dtype=torch.float64) for size in sizes])
    return images.double(), mask


OPTIONS = {
    "ten beams": SearchOptions(max_len=25),
    "three beams": SearchOptions(beam_size=3, max_len=30),
    "greedy": SearchOptions(beam_size=1, max_len=20),
    "cut off": SearchOptions(beam_size=4, max_len=4),
    "shortest": SearchOptions(beam_size=2, max_len=2),
    "other rules": SearchOptions(beam_size=4, max_len=30, alpha=0.7, early_stopping=True, temperature=1.3),
    "left to right": SearchOptions(beam_size=3, max_len=20, direction="l2r"),
    "right to left": SearchOptions(beam_size=3, max_len=20, direction="r2l"),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_equals_plain_search(seed: int, options: SearchOptions) -> None:
    model, images = random_model(seed), random_images(seed)
    assert_same(search(model, *images, options), plain_search(model, *images, options), 1e-10)


@pytest.mark.parametrize(
    "changes",
    [
        {"cross_coverage": False},
        {"self_coverage": False},
        {"cross_coverage": False, "self_coverage": False},
        {"num_decoder_layers": 1},
        {"num_decoder_layers": 4},
    ],
    ids=str,
)
def test_equals_plain_search_for_other_networks(changes: dict[str, Any]) -> None:
    model, images = random_model(5, **changes), random_images(5)
    options = SearchOptions(beam_size=5, max_len=20)
    assert_same(search(model, *images, options), plain_search(model, *images, options), 1e-10)


SHORT = {name: replace(options, max_len=min(options.max_len, 12)) for name, options in OPTIONS.items()}


@pytest.mark.parametrize("options", SHORT.values(), ids=SHORT)
def test_equals_plain_search_with_several_networks_and_sizes(options: SearchOptions) -> None:
    """Networks of which one is of another size and without coverage, each reading all sizes."""
    model, images = random_model(1), random_images(1)
    others = [random_model(2, d_model=24, cross_coverage=False, self_coverage=False), random_model(3)]
    mask_b1HW = images[1][:, None].double()
    larger = [(F.interpolate(images[0], scale_factor=1.5), F.interpolate(mask_b1HW, scale_factor=1.5)[:, 0] > 0)]
    together = search(model, *images, options, larger, others)
    assert_same(together, plain_search(model, *images, options, larger, others), 1e-10)
    assert together != search(model, *images, options, larger)
    # the mean of log-probabilities does not change if the only size or network is given twice
    alone = search(model, *images, options)
    assert_same(search(model, *images, options, [images]), alone, 1e-10)
    assert_same(search(model, *images, options, others=[model]), alone, 1e-10)


def test_networks_that_cannot_read_together_are_refused() -> None:
    model, images = random_model(1), random_images(1)
    words = Vocabulary([*model.vocabulary.words[:-2], *model.vocabulary.words[:-3:-1]])
    other = CoMER(model.settings, words).double().eval()
    with pytest.raises(ValueError, match="must have the same words in the same order"):
        search(model, *images, others=[other])
    tree = build(NETWORKS["densewap-td"](network="densewap-td")).eval()
    for networks in ((model, tree), (tree, model)):
        with pytest.raises(ValueError, match="densewap-td reads alone"):
            searcher(*networks)


def test_random_networks_are_demanding() -> None:
    """Hypotheses have many lengths, and special tokens inside."""
    results = [
        h
        for seed in range(3)
        for image in search(random_model(seed), *random_images(seed), OPTIONS["ten beams"])
        for h in image
    ]
    assert len({len(h.ids) for h in results}) > 5
    assert any(PAD in h.ids for h in results) and any({SOS, EOS} & {*h.ids} for h in results)
    assert not any(EOS in h.ids for h in results if h.direction == "l2r")


# --------------------------------------------------------------------------- optimizations change nothing


def test_finished_groups_and_unused_slots_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, options = random_model(1), random_images(1), SearchOptions(beam_size=3, max_len=40)
    sizes: list[tuple[int, int]] = []
    feed = IncrementalDecoder.feed

    def recorded(self: Any, tokens_GM: Tensor) -> Tensor:
        logits = feed(self, tokens_GM)
        sizes.append((len(tokens_GM), self.slots))
        return logits

    monkeypatch.setattr(IncrementalDecoder, "feed", recorded)
    with_compaction = search(model, *images, options)
    groups, slots = zip(*sizes, strict=True)
    assert groups[0] == 6 and groups[-1] < 6
    assert max(slots) < 3 * len(slots)

    monkeypatch.setattr("hmerbench.models.inference.reading.ROOM_STEPS", options.max_len)  # never full
    monkeypatch.setattr("hmerbench.models.inference.beam_search.SHARE_TO_DROP", 2)  # never reached
    sizes.clear()
    assert_same(search(model, *images, options), with_compaction, 1e-12)
    assert {groups for groups, _ in sizes} == {6} and sizes[-1][1] == 3 * len(sizes)


def test_rescoring_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, options = random_model(2), random_images(2), SearchOptions(beam_size=4, max_len=20)
    at_once = search(model, *images, options)
    monkeypatch.setattr("hmerbench.models.inference.joint_search.MAX_WORD_CELLS", 200)
    assert_same(search(model, *images, options), at_once, 1e-12)


# --------------------------------------------------------------------------- the tests notice mistakes


def late_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer and step uses the refinement of the one before."""
    refinement = AttentionRefinement.forward

    def late(self: Any, coverage_BCTL: Tensor, mask_Bhw: Tensor) -> Tensor:
        now = refinement(self, coverage_BCTL, mask_Bhw)
        before, self.before = getattr(self, "before", now), now
        return before if before.shape == now.shape else now

    monkeypatch.setattr(AttentionRefinement, "forward", late)


def coverage_is_not_reordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage does not follow its beam when beams are reordered."""
    reorder = IncrementalDecoder.reorder

    def forgetful(self: Any, parents_GM: Tensor) -> None:
        coverage = self.coverage_GMJCL
        reorder(self, parents_GM)
        self.coverage_GMJCL = coverage

    monkeypatch.setattr(IncrementalDecoder, "reorder", forgetful)


@pytest.mark.parametrize("mistake", [late_coverage, coverage_is_not_reordered])
def test_comparison_notices(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, options = random_model(0), random_images(0), SearchOptions(beam_size=4, max_len=20)
    expected = plain_search(model, *images, options)
    assert_same(search(model, *images, options), expected, 1e-10)
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        assert_same(search(model, *images, options), expected, TOLERANCE)


# ------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("field", "value"), [("beam_size", 0), ("max_len", 1), ("max_len", 501), ("temperature", 0.0), ("direction", "up")]
)
def test_impossible_options(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field) as error:
        SearchOptions(**{field: value})
    assert str(value) in str(error.value)


def test_impossible_search() -> None:
    model, images = random_model(0), random_images(0)
    with pytest.raises(ValueError, match="beam_size must be at most half of the 24 classes, not 13"):
        search(model, *images, SearchOptions(beam_size=13))
    with pytest.raises(ValueError, match="training mode"):
        search(copy.deepcopy(model).train(), *images)


def test_options_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        SearchOptions().beam_size = 3  # type: ignore[misc]
