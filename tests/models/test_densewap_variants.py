"""The networks built on DenseWAP after the text of papers: each differs from it by what the paper adds, and no more."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hmerbench.benchmarks import config as configs
from hmerbench.benchmarks.errors import UserError
from hmerbench.models.densewap import END, DenseWAP
from hmerbench.models.densewap_weak import presence_loss
from hmerbench.models.inference.densewap_search import DenseWAPSearch
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.network import NO_WORD, build
from hmerbench.models.settings import (
    DenseWAPSettings,
    DropAttentionSettings,
    StackedSettings,
    WAPSettings,
    WeakSettings,
)
from hmerbench.models.vocab import EOS

NANO = WAPSettings.sizes["nano"]
CAPTIONS = [["x", "+", "1", "+", "x"], ["2"]]


def images(*sizes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Images of noise with the padding of a batch."""
    height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
    mask = torch.ones(len(sizes), height, width, dtype=torch.bool)
    for row, (h, w) in zip(mask, sizes, strict=True):
        row[:h, :w] = False
    draw = torch.Generator().manual_seed(1)
    return (torch.rand(len(sizes), 1, height, width, generator=draw) * ~mask[:, None]).double(), mask


def new(settings: WAPSettings) -> Any:
    torch.manual_seed(0)
    return build(settings).double().eval()


BATCH = images((32, 64), (48, 32))


def densewap_of(network: Any) -> DenseWAP:
    """DenseWAP with the weights that the network shares with it."""
    plain = DenseWAP(DenseWAPSettings(**NANO)).double().eval()
    plain.load_state_dict({key: network.state_dict()[key] for key in plain.state_dict()})
    return plain


# The weak loss.


def test_presence_is_the_binary_cross_entropy_of_the_largest_logit():
    """Two images of two cells, the second cell of the second image being padding; classes END, a, b."""
    logits_bhwV = torch.tensor([[[[9.0, 2.0, -1.0], [9.0, 0.5, -3.0]]], [[[9.0, -2.0, 1.5], [9.0, 100.0, 100.0]]]])
    mask_bhw = torch.tensor([[[False, False]], [[False, True]]])
    words_bT = torch.tensor([[1, 1, END], [2, END, NO_WORD]])
    present, absent = (lambda x: math.log1p(math.exp(-x))), (lambda x: math.log1p(math.exp(x)))
    by_hand = (present(2.0) + absent(-1.0) + absent(-2.0) + present(1.5)) / 4
    assert presence_loss(logits_bhwV, mask_bhw, words_bT).item() == pytest.approx(by_hand, rel=1e-6)


def test_weak_loss_is_added_and_teaches_the_encoder_alone():
    network, (pixels, mask) = new(WeakSettings(**NANO, weak_loss=3.0)), BATCH
    targets, plain = network.targets(CAPTIONS), densewap_of(network)
    features = network.encoder(pixels, mask)
    weak = presence_loss(network.presence(features.maps_bhwD), features.mask_bhw, targets.words_bT)
    torch.testing.assert_close(network(pixels, mask, targets), plain(pixels, mask, targets) + 3 * weak)
    weak.backward()
    learned = {name.partition(".")[0] for name, tensor in network.named_parameters() if tensor.grad is not None}
    assert learned == {"encoder", "presence"}


# Dropped attention.


def test_attention_is_dropped_in_training_alone():
    """Of features that are all 1, attention reads 1 in evaluation, and in training the share of it that is kept."""
    p, runs = 0.25, 400
    network = new(DropAttentionSettings(**NANO, drop_attention=p))
    attention, cells = network.decoder.attention, 5 * 8
    memory = attention.remember(
        torch.ones(1, 5, 8, network.encoder.net.out_channels).double(), torch.zeros(1, 5, 8) > 0
    )
    state, past = torch.zeros(1, runs, NANO["hidden"]).double(), torch.zeros(1, runs, 5, 8)
    looked_bMhw, read_bMD = attention(memory, state, past)
    torch.testing.assert_close(read_bMD, torch.ones_like(read_bMD))
    again_bMhw, read_bMD = attention.train()(memory, state, past)
    torch.testing.assert_close(again_bMhw, looked_bMhw)  # what coverage will sum is whole
    kept_M = read_bMD[0, :, 0] * (1 - p) * cells  # all cells are looked at alike: how many were kept
    torch.testing.assert_close(kept_M, kept_M.round())
    assert kept_M.mean().item() / cells == pytest.approx(1 - p, abs=4 * math.sqrt(p * (1 - p) / (runs * cells)))
    assert kept_M.var().item() == pytest.approx(cells * p * (1 - p), rel=0.4)  # binomial: cells are dropped singly


def test_dropped_attention_reads_as_densewap_does():
    network = new(DropAttentionSettings(**NANO))
    plain, targets = densewap_of(network), network.targets(CAPTIONS)
    assert torch.equal(network.predict(*BATCH, targets)[0], plain.predict(*BATCH, targets)[0])
    assert not torch.equal(network.train()(*BATCH, targets), plain.train()(*BATCH, targets))


# The stacked decoder.


def test_one_head_and_one_layer_are_densewap():
    """If what the head reads is passed on unchanged."""
    network = new(StackedSettings(**NANO, heads=1, layers=1))
    with torch.no_grad():
        join = network.decoder.attention.join
        join.weight.copy_(torch.eye(len(join.weight)))
        join.bias.zero_()
    shared = {key.replace("attention.heads.0.", "attention."): tensor for key, tensor in network.state_dict().items()}
    plain = DenseWAP(DenseWAPSettings(**NANO)).double().eval()
    plain.load_state_dict({key: shared[key] for key in plain.state_dict()})
    targets = network.targets(CAPTIONS)
    torch.testing.assert_close(network.predict(*BATCH, targets)[0], plain.predict(*BATCH, targets)[0])
    ours, theirs = (each.trace(BATCH[0][:1], BATCH[1][:1], CAPTIONS[0]) for each in (network, plain))
    torch.testing.assert_close(ours.looked_Thw, theirs.looked_Thw)


def test_every_head_of_every_layer_learns():
    network = new(StackedSettings(**NANO, heads=4, layers=3)).train()
    features = network.encoder(*BATCH)
    memory, state, past = network.decoder.begin(features)
    products_bM3n = network.decoder.cell1.input(network.decoder.embed(torch.full((2, 1), 5)))
    step = network.decoder.step(memory, products_bM3n, state, past)
    assert step.state_bMn.shape == (2, 1, 3, 16) and step.past_bMhw.shape == (2, 1, 3, 4, 3, 4)
    torch.testing.assert_close(step.past_bMhw.sum((-2, -1)), torch.ones(2, 1, 3, 4).double())  # each head by itself
    network(*BATCH, network.targets(CAPTIONS)).backward()
    gradients = {name: tensor.grad for name, tensor in network.named_parameters()}
    silent = [name for name, grad in gradients.items() if grad is None or not grad.abs().sum() > 0]
    assert [name for name in silent if not name.endswith("energy.bias")] == []  # softmax ignores a constant


def test_heads_must_divide_the_channels(tmp_path):
    (tmp_path / "mine.yaml").write_text("model: {network: densewap-stacked, heads: 7}\nsearch: {direction: l2r}")
    with pytest.raises(UserError, match="heads must divide attention = 512; 7 does not"):
        configs.resolve(str(tmp_path / "mine.yaml"), "paper", 7)


# All of them.


@pytest.mark.parametrize("kind", [DenseWAPSettings, WeakSettings, DropAttentionSettings, StackedSettings])
def test_search_scores_are_those_of_teacher_forcing(kind: type[WAPSettings]):
    """With weights so large that hypotheses change their order and end at different steps."""
    network = new(kind(**NANO))
    with torch.no_grad():
        for tensor in network.decoder.parameters():
            tensor.mul_(1.5 if tensor.ndim > 1 else 1)
        network.decoder.classes.weight.mul_(3)
        network.decoder.classes.bias[END] = 6
    read, options = DenseWAPSearch(network), SearchOptions(beam_size=3, max_len=12, direction="l2r")
    alone = [(BATCH[0][i : i + 1], BATCH[1][i : i + 1]) for i in range(len(BATCH[0]))]
    found = [read([view], options)[0] for view in alone]
    assert all(len({len(h.ids) for h in hypotheses}) == 3 for hypotheses in found)
    for number, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            words_1T = torch.tensor([[*hypothesis.ids, EOS]]) - EOS
            features = network.encoder(BATCH[0][number : number + 1], BATCH[1][number : number + 1])
            logp_1TV = network.decoder(features, words_1T).log_softmax(-1)
            mean = logp_1TV.gather(-1, words_1T[..., None]).mean().item()
            assert hypothesis.score == pytest.approx(mean, abs=1e-5)
