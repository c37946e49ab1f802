"""A network prepared to read equals the network itself."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hmerbench.models.densewap import END, START, DenseWAP
from hmerbench.models.inference.densewap_search import DenseWAPDecoder
from hmerbench.models.inference.joint_search import JointSearch
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.inference.reading import BoundNetwork, IncrementalDecoder, ReadingNetwork, distinct_prefixes
from hmerbench.models.settings import DenseWAPSettings
from hmerbench.models.vocab import SOS
from tests.helpers.networks import IMAGES, padded, small
from tests.helpers.search import search


def images(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    stack, mask = padded(IMAGES, extra=19)
    return stack.to(dtype), mask


@torch.no_grad()
@pytest.mark.parametrize("cross, self_", [(True, True), (True, False), (False, True), (False, False)])
def test_rows_with_common_prefixes(cross: bool, self_: bool) -> None:
    model = small(cross_coverage=cross, self_coverage=self_).double()
    batch = images(torch.float64)
    features, mask = model.encode(*batch)
    rows = [[SOS, 5, 6, 7, 8], [SOS, 5, 6, 9, 4], [SOS, 5, 6, 7], [SOS, 5, 6], [SOS, 8]]
    inputs = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    bound = BoundNetwork(ReadingNetwork(model), *batch)
    logits = bound.read(1, inputs, torch.tensor([len(row) for row in rows]))
    for row, together in zip(rows, logits, strict=True):
        alone = model.decoder(features[1:2], mask[1:2], torch.tensor([row]))[0]
        torch.testing.assert_close(together[: len(row)], alone, atol=1e-10, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("network", ["comer", "densewap"])
def test_step_by_step_a_network_gives_the_logits_of_training(network: str) -> None:
    """Of beams that read different words, also after they were reordered and an image was dropped."""
    model: Any
    decoder: Any
    stack, mask = images(torch.float64)
    words = torch.randint(4, 20, (len(stack), 2, 6), generator=torch.Generator().manual_seed(1))
    if network == "comer":
        model = small().double()
        decoder = IncrementalDecoder(BoundNetwork(ReadingNetwork(model), stack, mask), torch.arange(len(stack)), 2)
        words[..., 0] = SOS
        each = [model.decoder(*model.encode(stack, mask), words[:, beam]) for beam in range(2)]
    else:
        torch.manual_seed(3)
        model = DenseWAP(DenseWAPSettings(hidden=16, attention=8, embedding=12, num_layers=1)).double().eval()
        decoder = DenseWAPDecoder(model, (stack, mask), 2)
        features, after = model.encode(stack, mask), F.pad(words[..., 1:], (0, 1), value=END)
        each = [model.decoder(features, after[:, beam]) for beam in range(2)]
        words[..., 0] = START
    logits, rows = torch.stack(each, dim=1), torch.arange(len(stack))[:, None]
    beams = torch.arange(2).expand(len(stack), 2)
    for t in range(words.shape[2]):
        found = decoder.feed(words[rows, beams, t])
        torch.testing.assert_close(found, logits[rows, beams, t], atol=1e-10, rtol=0)
        decoder.reorder(torch.tensor([1, 0]).expand(len(rows), 2))
        beams = beams.flip(1)
        if t == 2:
            decoder.compact(torch.tensor([0, 2]))
            rows, beams = rows[[0, 2]], beams[[0, 2]]


def test_distinct_prefixes() -> None:
    inputs = torch.tensor([[1, 5, 6, 7], [1, 5, 0, 7], [1, 5, 0, 0], [1, 6, 0, 0]])  # the second row has an inner pad
    last_X, number_RT, earlier_XX = distinct_prefixes(inputs, torch.tensor([4, 4, 2, 2]))
    assert last_X.tolist() == [0, 1, 2, 3, 6, 7, 13]
    numbers = number_RT.tolist()
    assert numbers[0] == [0, 1, 2, 3] and numbers[1] == [0, 1, 4, 5]
    assert numbers[2][:2] == [0, 1] and numbers[3][:2] == [0, 6]
    assert max(max(row) for row in numbers) < len(last_X)
    earlier = [row.nonzero()[:, 0].tolist() for row in earlier_XX]
    assert earlier == [[], [0], [0, 1], [0, 1, 2], [0, 1], [0, 1, 4], [0]] and earlier_XX.max() == 1


def test_a_search_reads_several_batches() -> None:
    model, options = small(), SearchOptions(beam_size=3, max_len=8)
    (stack, mask), read = images(), JointSearch(model)
    for i in range(len(stack)):
        image = stack[i : i + 1], mask[i : i + 1]
        assert read([image], options) == search(model, *image, options)


def test_a_search_does_not_follow_later_changes_of_the_weights() -> None:
    model, options = small(), SearchOptions(beam_size=3, max_len=8)
    (stack, mask), read = images(), JointSearch(model)
    image = stack[:1], mask[:1]
    before = read([image], options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert read([image], options) == before != JointSearch(model)([image], options)


def test_a_search_keeps_the_precision_of_its_creation() -> None:
    model, batch, options = small(), images(), SearchOptions(beam_size=3, max_len=8)
    with torch.autocast("cpu", torch.bfloat16):
        read = JointSearch(model)
        expected = search(model, *batch, options)
    assert read.networks[0].dtype == torch.bfloat16
    assert read([batch], options) == expected
