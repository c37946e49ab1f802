"""The language model, its corpus and its training; the small numbers are derived in numpy, apart from the model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hmerbench.benchmarks.environment import best_device
from hmerbench.benchmarks.errors import Diverged
from hmerbench.benchmarks.language_models import training
from hmerbench.benchmarks.language_models.corpus import SPLITS, columns, read_corpus
from hmerbench.benchmarks.language_models.training import Trainer, perplexity, train
from hmerbench.benchmarks.language_settings import LanguageSettings, Training, resolve, tied
from hmerbench.benchmarks.performance.plain import plain_loss
from hmerbench.benchmarks.runs.run import LanguageRun
from hmerbench.models.language import LINE_END, UNKNOWN, LanguageModel, Lexicon
from hmerbench.models.settings import LanguageConfig
from tests.helpers.paths import SHARED

PTB = SHARED / "ptb"
WORDS = [UNKNOWN, LINE_END, "a", "ab", "bab", "abba"]
TINY: dict[str, Any] = {"character_size": 2, "widths": 3, "filters": 1, "hidden": 3, "dropout": 0.0}


@pytest.fixture
def corpus(tmp_path: Path):
    """Three files of lines of few words, some of them unknown."""
    generator = np.random.default_rng(1)
    for split, lines in (("train", 60), ("valid", 20), ("test", 13)):
        text = [" ".join(generator.choice(["<unk>", "a", "ab", "bab", "abba"], 5)) for _ in range(lines)]
        (tmp_path / f"{split}.txt").write_text("\n".join(text) + "\n")
    return read_corpus(tmp_path)


def tiny_run(folder: Path, corpus, **keys) -> LanguageRun:
    settings = LanguageSettings(
        recipe="tiny",
        model=replace(LanguageConfig(**TINY), dropout=0.5),
        training=Training(epochs=3, batch_size=3, steps=12, **keys),
    )
    return LanguageRun(folder, tied(settings, corpus.name, corpus.digest))


# ------------------------------------------------------------------------------------------------- the text

SEPARATORS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "\xa0"]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_only_a_newline_ends_a_line(tmp_path: Path, separator: str):
    """Whatever else Unicode counts as the end of a line, a blank has the same words."""
    for folder, between in (("as-given", separator), ("blank", " ")):
        (tmp_path / folder).mkdir()
        for split in SPLITS:
            (tmp_path / folder / f"{split}.txt").write_bytes(f"a b a{between}b ba\nab{between} a\n".encode())
    given, blank = read_corpus(tmp_path / "as-given"), read_corpus(tmp_path / "blank")
    assert given.lexicon.words == blank.lexicon.words and all(given.splits[s].equal(blank.splits[s]) for s in SPLITS)


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path):
    for split in SPLITS:
        (tmp_path / f"{split}.txt").write_bytes(b"\xef\xbb\xbfa b\na\n")
    assert read_corpus(tmp_path).lexicon.words == [UNKNOWN, "a", "b", LINE_END]


# ----------------------------------------------------------------------------------------------- the model in numpy


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def loss_in_numpy(p: dict[str, np.ndarray], words, targets) -> float:
    """The summed loss of one sequence from the zero state, by the paper's formulas (sec. 2), word by word."""
    # PAD 0, { 1, } 2, then the characters in order: the line's end, the unknown word's, a, b
    spelled = [[1, 4, 2, 0, 0, 0], [1, 3, 2, 0, 0, 0], [1, 5, 2, 0, 0, 0], [1, 5, 6, 2, 0, 0]]
    spelled += [[1, 6, 5, 6, 2, 0], [1, 5, 6, 6, 5, 2]]
    h, c = [np.zeros(3)] * 2, [np.zeros(3)] * 2
    loss = 0.0
    for word, target in zip(words, targets, strict=True):
        x = p["cnn.characters.weight"][spelled[word]]
        y = []
        for width in (1, 2, 3):
            H, b = p[f"cnn.filters.{width - 1}.weight"], p[f"cnn.filters.{width - 1}.bias"]
            responses = [np.tanh(H @ x[at : at + width].ravel() + b) for at in range(6 - width + 1)]
            y.append(np.max(responses, axis=0))
        x = np.concatenate(y)
        t = sigmoid(p["highways.0.gate.weight"] @ x + p["highways.0.gate.bias"] - 2)
        g = np.maximum(0, p["highways.0.transform.weight"] @ x + p["highways.0.transform.bias"])
        x = t * g + (1 - t) * x
        for layer in (0, 1):
            name = f"lstm.{layer}"
            sums = p[f"{name}.weight_ih_l0"] @ x + p[f"{name}.bias_ih_l0"]
            sums = sums + p[f"{name}.weight_hh_l0"] @ h[layer] + p[f"{name}.bias_hh_l0"]
            i, f, candidate, o = np.split(sums, 4)
            c[layer] = sigmoid(f) * c[layer] + sigmoid(i) * np.tanh(candidate)
            x = h[layer] = sigmoid(o) * np.tanh(c[layer])
        logits = p["softmax.weight"] @ x + p["softmax.bias"]
        loss += np.log(np.exp(logits).sum()) - logits[target]
    return loss


def tiny_model(dtype=torch.float64) -> LanguageModel:
    torch.manual_seed(3)
    model = LanguageModel(LanguageConfig(**TINY), Lexicon(WORDS)).to(dtype)
    model.initialize(0.7)
    return model


def test_loss_and_gradient_equal_those_of_numpy():
    model, words, targets = tiny_model(), [5, 2, 2, 1], [2, 2, 1, 0]
    column = lambda numbers: torch.tensor(numbers)[:, None]  # noqa: E731
    loss, _ = model(column(words), column(targets), model.initial_state(1))
    loss.backward()
    loss = loss.detach()
    p = {name: tensor.detach().numpy().copy() for name, tensor in model.named_parameters()}
    assert float(loss) == pytest.approx(loss_in_numpy(p, words, targets), rel=1e-12)
    for name, gradient in gradients(model).items():
        for at in np.ndindex(p[name].shape):
            old, step = p[name][at], 1e-6
            p[name][at] = old + step
            above = loss_in_numpy(p, words, targets)
            p[name][at] = old - step
            below = loss_in_numpy(p, words, targets)
            p[name][at] = old
            assert float(gradient[at]) == pytest.approx((above - below) / (2 * step), abs=1e-7), (name, at)


def gradients(model: LanguageModel) -> dict[str, torch.Tensor]:
    """Copies of all gradients, none of which may be missing."""
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 1e-5), (True, 0.1)])
def test_the_fast_way_has_the_gradients_of_the_plain_way(bf16, tolerance):
    """In bfloat16, either of two nearly equal responses of a filter may be the largest."""
    torch.manual_seed(5)
    words = ["".join(map(chr, row)) for row in torch.randint(97, 105, (200, 9)).tolist()]
    config = LanguageConfig(character_size=8, widths=4, filters=8, hidden=32, highways=2, dropout=0.0)
    model = LanguageModel(config, Lexicon([UNKNOWN, LINE_END, *words]))
    model.initialize(0.2)
    words_TB, targets_TB = torch.randint(0, 202, (2, 12, 6))
    state = [(torch.rand(1, 6, 32), torch.rand(1, 6, 32)) for _ in range(2)]
    loss, _ = model(words_TB, targets_TB, state, bf16)
    loss.backward()
    fast = gradients(model)
    model.zero_grad()
    plain = plain_loss(model, words_TB, targets_TB, state)
    plain.backward()
    assert loss.item() == pytest.approx(plain.item(), rel=tolerance / 10)
    for name, gradient in gradients(model).items():
        assert (fast[name] - gradient).norm() < tolerance * gradient.norm(), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_cpus_loss_and_gradients():
    model, (words_TB, targets_TB) = tiny_model(torch.float32), torch.randint(0, len(WORDS), (2, 12, 6))
    loss, (_, (_, c)) = model(words_TB, targets_TB, model.initial_state(6))
    loss.backward()
    expected = gradients(model)
    model.zero_grad()
    model.to(best_device())
    loss_there, (_, (_, c_there)) = model(words_TB.cuda(), targets_TB.cuda(), model.initial_state(6))
    loss_there.backward()
    assert loss_there.item() == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(c_there.cpu(), c, rtol=1e-4, atol=1e-5)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient.cpu(), expected[name], rtol=1e-3, atol=1e-4, msg=name)


def test_the_gradient_of_padding_counts_but_padding_stays_zero(corpus, tmp_path):
    trainer = Trainer(tiny_run(tmp_path / "run", corpus, clip=1e-3), corpus)
    table = trainer.model.cnn.characters.weight
    norms = []
    clip = torch.nn.utils.clip_grad_norm_

    def observed(parameters, limit):
        assert gradients(trainer.model)["cnn.characters.weight"][0].any()
        norms.append(float(clip(parameters, limit)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.nn.utils, "clip_grad_norm_", observed)
        before = torch.cat([parameter.flatten() for parameter in trainer.model.parameters()]).detach().clone()
        trainer.step(*trainer.batches[0])
    after = torch.cat([parameter.flatten() for parameter in trainer.model.parameters()]).detach()
    assert not table[0].any()
    assert norms[0] > 1e-3
    assert float((after - before).norm()) < 1e-3  # less than the clipped norm, by the padding's part


def test_words_may_be_shorter_than_the_widest_filter():
    model = LanguageModel(LanguageConfig(hidden=4), Lexicon([UNKNOWN, LINE_END, "a"]))
    loss, _ = model(torch.tensor([[1], [2]]), torch.tensor([[2], [1]]), model.initial_state(1))
    assert model.spelled_VL.tolist()[2] == [1, 5, 2, 0, 0, 0] and loss.isfinite()


# --------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("at", [5, 10, 11])  # within an epoch, at its last step, at the first of the next
def test_killed_and_resumed_is_bit_equal(corpus, tmp_path, bf16_unit, monkeypatch, at):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    straight, killed = (tiny_run(tmp_path / name, corpus) for name in ("straight", "killed"))
    train(straight, corpus)
    step, count = Trainer.step, 0

    def dies(self, *batch):
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        return step(self, *batch)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "step", dies)
        train(killed, corpus)
    train(killed, corpus)
    weights = [(run.path / "weights.safetensors").read_bytes() for run in (straight, killed)]
    assert weights[0] == weights[1]
    perplexities = [[entry["train_perplexity"] for entry in run.history] for run in (straight, killed)]
    assert perplexities[0] == perplexities[1] and len(perplexities[0]) == 3
    assert straight.scores["test_perplexity"] == killed.scores["test_perplexity"]
    assert "resumed" not in killed.environment  # it went on in the same one


def test_a_training_that_is_repeated_is_tested_again(corpus, tmp_path):
    """As the message about a damaged checkpoint says: delete it to train from the start."""
    run = tiny_run(tmp_path / "run", corpus)
    train(run, corpus)
    scores, weights = run.path / "scores.json", run.path / "weights.safetensors"
    right = scores.read_text(), weights.read_bytes()
    (run.path / "checkpoint.safetensors").unlink()
    weights.write_bytes(b"of the earlier training")
    train(run, corpus)
    assert weights.read_bytes() == right[1]
    assert run.scores["test_perplexity"] == json.loads(right[0])["test_perplexity"]


def test_lost_weights_of_a_finished_training_are_written_again(corpus, tmp_path):
    run = tiny_run(tmp_path / "run", corpus)
    train(run, corpus)
    weights, scores = run.path / "weights.safetensors", run.scores
    before = weights.read_bytes()
    weights.unlink()
    (run.path / f".checkpoint.safetensors.{2**22}.part").write_text("of a killed training")
    train(run, corpus)
    assert weights.read_bytes() == before
    assert run.scores["test_perplexity"] == scores["test_perplexity"]
    assert not list(run.path.glob(".*.part"))


def test_the_rate_halves_from_the_third_epoch_on_after_little_improvement(corpus, tmp_path, monkeypatch):
    trainer = Trainer(tiny_run(tmp_path / "run", corpus), corpus)
    rates = []
    for value in (100.0, 99.5, 98.4, 97.5, 98.0, 90.0):  # the second improves by little, but too early
        monkeypatch.setattr(training, "perplexity", lambda *_, value=value: value)
        trainer._validated()
        rates.append(trainer.position.rate)
    assert rates == [1, 1, 1, 0.5, 0.25, 0.25]


def test_perplexity_reads_every_word_in_any_pieces(corpus):
    torch.manual_seed(1)
    model = LanguageModel(LanguageConfig(**TINY), corpus.lexicon)
    test = corpus.splits["test"]
    state, vectors = model.initial_state(1), model.vectors(torch.arange(len(corpus.lexicon)))
    log_likelihoods, _ = model.log_likelihoods(test[:, None], test.roll(-1)[:, None], state, vectors)
    assert len(log_likelihoods) == 78  # 13 lines of five words and their ends
    expected = float((-log_likelihoods.mean()).exp())
    assert perplexity(model, test, 1, 1, 7) == pytest.approx(expected, rel=1e-6)


def test_columns_continue_from_batch_to_batch():
    words, targets = columns(torch.arange(23), batch=2, steps=5)
    assert words.T.tolist() == [[*range(10)], [*range(10, 20)]]
    assert targets.T.tolist() == [[*range(1, 11)], [*range(11, 20), 0]]


# -------------------------------------------------------------------------------------------------- the paper's sizes


def test_bf16_stands_for_float32_without_a_unit(corpus, tmp_path, bf16_unit, monkeypatch):
    """Emulated, it would take three times as long."""

    def trained(name: str, bf16: bool) -> bytes:
        run = tiny_run(tmp_path / name, corpus, bf16=bf16)
        train(run, corpus)
        return (run.path / "weights.safetensors").read_bytes()

    emulated, float32 = trained("emulated", True), trained("float32", False)
    for check in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, check, lambda: False)
    assert trained("replaced", True) == float32 != emulated


@pytest.mark.skipif(not PTB.is_dir(), reason="needs the Penn Treebank")
def test_penn_treebank_and_parameters_are_the_papers(tmp_path):
    corpus = read_corpus(PTB)
    assert [len(corpus.splits[split]) for split in SPLITS] == [929_589, 73_760, 82_430]
    assert (corpus.name, len(corpus.lexicon), corpus.lexicon.spelled().shape) == ("ptb", 10_000, (10_000, 21))
    for recipe, parameters in {"lm-char-small": 5_312_515, "lm-char-large": 19_373_165}.items():
        run = LanguageRun(tmp_path / recipe, tied(resolve(recipe, 7), corpus.name, corpus.digest))
        trainer = Trainer(run, corpus)
        assert sum(parameter.numel() for parameter in trainer.model.parameters()) == parameters
        assert (len(trainer.batches), trainer.batches[0][0].shape) == (1_327, (35, 20))
        for name, parameter in trainer.model.named_parameters():
            assert 0.04 < parameter.abs().max().item() <= 0.05, name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no words"),
        (b" \n \n", "holds no words"),
        (b"a b c", "a single line"),
        (b"a\nb \xff\n", "line 2: this is not UTF-8"),
        (b"a\n" + b"b" * 64 + b"\n", "line 2: a word has 64 characters"),
    ],
)
def test_a_bad_corpus_is_one_clear_line(corpus, tmp_path, content, message):
    (tmp_path / "valid.txt").write_bytes(content)
    with pytest.raises(training.UserError, match=message) as caught:
        read_corpus(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "valid.txt"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (1e38, "the weights are no longer finite in epoch 1, step 1"),
        (1e30, "the validation perplexity is no longer finite in epoch 1, step 1"),
    ],
)
def test_a_model_that_diverges_is_not_tested(tmp_path: Path, rate: float, words: str):
    """Neither with weights that its last step, of finite loss, made infinite, nor with a loss beyond what exp holds."""
    for split in SPLITS:
        (tmp_path / f"{split}.txt").write_text("a b ab ba abba\n" * 20)
    corpus = read_corpus(tmp_path)
    settings = tiny_run(tmp_path / "run", corpus).settings.changed(
        {"training": {"rate": rate, "clip": 1e38, "epochs": 1, "steps": 40, "bf16": False}, "model.dropout": 0.0}
    )
    with pytest.raises(Diverged, match=words):
        train(LanguageRun(tmp_path / "run", settings), corpus)
    assert not [*(tmp_path / "run").glob("scores.json"), *(tmp_path / "run").glob("weights.safetensors")]
