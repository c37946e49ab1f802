"""DenseWAP-TD behind the seam: captions without a tree, attention of braces, trees read as LaTeX."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.recognition.attention import trace
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.training.training_data import training_data
from hmerbench.models.densewap import END
from hmerbench.models.densewap_td import DenseWAPTD
from hmerbench.models.inference.densewap_search import TreeSearch, WrittenTree
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.settings import DenseWAPTDSettings
from hmerbench.models.trees import RELATIONS, NoTree
from tests.helpers.networks import padded
from tests.helpers.tiny import tiny_archive

NESTED = ["\\frac", "{", "x", "^", "{", "2", "}", "}", "{", "\\sqrt", "{", "y", "}", "}", "+", "z"]
ROOT = ["\\sqrt", "[", "3", "]", "{", "x", "}"]


@pytest.fixture
def network() -> DenseWAPTD:
    torch.manual_seed(0)
    return DenseWAPTD(DenseWAPTDSettings(**DenseWAPTDSettings.sizes["nano"])).eval()


def view(*sizes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Images of noise with the padding of a batch."""
    torch.manual_seed(1)
    return padded([torch.rand(size) for size in sizes])


def test_captions_without_a_tree(network: DenseWAPTD) -> None:
    assert network.unfit(NESTED) is None and network.unfit(ROOT) == "a root with an index"
    with pytest.raises(NoTree, match="a root with an index"):
        network.targets([NESTED, ROOT])
    with pytest.raises(ValueError, match="symbol 'nonsense' is not in"):
        network.targets([["nonsense"]])


def test_training_leaves_them_out_and_says_so(
    network: DenseWAPTD, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = open_archive(tiny_archive(tmp_path))
    config = resolve("densewap-td", "smoke", 7, archive).changed({"select": "last"})
    ink = np.full((16, 32), 255, np.uint8)
    samples = [Sample("a", tuple(NESTED), ink), Sample("b", tuple(ROOT), ink), Sample("c", ("x",), ink)]
    training_set, _ = training_data(config, archive, samples, torch.device("cpu"), network)
    assert {sample.id for sample in training_set.samples} <= {"a", "c"}
    assert "left out of 3 training expressions: a root with an index (1)" in capsys.readouterr().err
    with pytest.raises(UserError, match="no training expression is left"):
        training_data(config, archive, samples[1:2], torch.device("cpu"), network)


def test_loss_does_not_depend_on_the_padding_of_targets(network: DenseWAPTD) -> None:
    images, mask = view((32, 48), (48, 32))
    captions = [NESTED, ["x"]]
    loss = network(images, mask, network.targets(captions))
    assert torch.equal(network(images, mask, network.targets(captions, lambda T: T + 5)), loss)


def test_trace_has_a_map_for_every_token_and_the_end(network: DenseWAPTD) -> None:
    images, mask = view((48, 64))
    maps = network.trace(images, mask, NESTED)
    assert maps.looked_Thw.shape == (len(NESTED) + 1, 3, 4) and maps.suppressed_Thw is None
    parent, child, *_ = network.decode(images, mask, network.targets([NESTED]))
    brace, x = NESTED.index("{"), NESTED.index("x")
    assert torch.equal(maps.looked_Thw[brace].flatten(), parent.attention_bML[0, 1])
    assert torch.equal(maps.looked_Thw[x].flatten(), child.attention_bML[0, 1])


def test_attention_of_a_caption_without_a_tree(network: DenseWAPTD) -> None:
    config, ink = resolve("densewap-td", "paper", 7), np.full((32, 32), 255, np.uint8)
    assert trace(network, config, ink, NESTED).tokens == (*NESTED, "<eos>")
    with pytest.raises(UserError, match=r"densewap-td cannot decode '\\\\sqrt \[ 3 \] \{ x \}': a root with an index"):
        trace(network, config, ink, ROOT)


def test_search_refuses_what_it_does_not_have(network: DenseWAPTD) -> None:
    with pytest.raises(ValueError, match="left to right only"):
        TreeSearch(network)([view((16, 16))], SearchOptions(direction="r2l"))
    with pytest.raises(ValueError, match="no temperature"):
        TreeSearch(network)([view((16, 16))], SearchOptions(temperature=0.5))
    with pytest.raises(ValueError, match="training mode"):
        TreeSearch(network.train())


@pytest.mark.parametrize(
    ("relation", "latex"), [("Above", "\\frac { x }"), ("Right", "\\frac x"), ("Sup", ""), ("Inside", "")]
)
def test_a_tree_is_read_as_latex_or_as_nothing(network: DenseWAPTD, relation: str, latex: str) -> None:
    symbols = (network.ids["\\frac"], network.ids["x"], END)
    tree = WrittenTree(symbols, (0, 1, 2), (3, RELATIONS.index(relation), 0), cost=6.0)
    hypothesis = TreeSearch(network)._hypothesis(tree, alpha=1.0)
    assert network.vocabulary.decode(hypothesis.ids) == latex.split() and hypothesis.score == -2.0
