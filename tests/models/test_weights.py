"""Weights files: round trip and damage; import of the authors' checkpoints without executing anything in them."""

import argparse
import collections
import datetime
import decimal
import enum
import functools
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch._utils import _rebuild_tensor_v2

from hmerbench.models.authors_checkpoint import import_lightning
from hmerbench.models.comer import CoMER
from hmerbench.models.files import CheckpointError
from hmerbench.models.language import LanguageModel, Lexicon, load_language_model, pack_language_model
from hmerbench.models.network import build
from hmerbench.models.settings import NETWORKS, CoMERSettings, DenseWAPSettings, LanguageConfig, of_its_network
from hmerbench.models.vocab import CROHME, Vocabulary
from hmerbench.models.weights import load_weights, pack_tensors, pack_weights, read_tensors
from tests.helpers.checkpoints import lightning

CONFIG = CoMERSettings(d_model=16, growth_rate=4, num_layers=2, nhead=2, dim_feedforward=24, dc=5)


@pytest.fixture
def model() -> CoMER:
    torch.manual_seed(1)
    return CoMER(CONFIG)


@pytest.fixture
def weights(model: CoMER, tmp_path: Path) -> Path:
    (tmp_path / "best.safetensors").write_bytes(pack_weights(model))
    return tmp_path / "best.safetensors"


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def fails_with(words: str, path: Path) -> Any:
    """Expects an error of one line that starts with the path and contains `words`."""
    return pytest.raises(CheckpointError, match=rf"^{path}: [^\n]*{words}[^\n]*$")


def with_header(path: Path, **changes: object) -> None:
    header, tensors = read_tensors(path)
    path.write_bytes(pack_tensors(tensors, header | changes))


@pytest.mark.parametrize("num_layers", [2, (1, 2, 3)])
def test_round_trip(num_layers: int | tuple[int, int, int], tmp_path: Path) -> None:
    model, path = CoMER(replace(CONFIG, num_layers=num_layers)), tmp_path / "weights.safetensors"
    path.write_bytes(pack_weights(model))
    loaded = load_weights(path, model.settings)
    assert loaded.settings == model.settings == load_weights(path).settings
    assert type(vars(loaded.settings)["num_layers"]) is type(num_layers)
    assert same(loaded.state_dict(), model.state_dict()) and pack_weights(loaded) == path.read_bytes()


def test_numbers_that_are_not_finite(model: CoMER, tmp_path: Path) -> None:
    """As from a training that diverged, or a weight beyond the range of float16."""
    with torch.no_grad():
        model.get_parameter("encoder.model.norm1.weight")[0] = torch.inf
    (tmp_path / "best.safetensors").write_bytes(pack_weights(model))
    with fails_with("encoder.model.norm1.weight holds numbers that are not finite", tmp_path / "best.safetensors"):
        load_weights(tmp_path / "best.safetensors")


def test_other_configuration_names_the_keys(weights: Path) -> None:
    with fails_with("self_coverage True instead of False", weights):
        load_weights(weights, replace(CONFIG, self_coverage=False))
    with fails_with("stride 16 instead of 8", weights):
        load_weights(weights, replace(CONFIG, stride=8))


def test_words_travel_with_the_weights(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the dictionary says; the oldest files, which list none, have CROHME's."""
    words = Vocabulary().words
    (tmp_path / "reversed.txt").write_text("\n".join(reversed(Vocabulary().words[3:])))
    monkeypatch.setattr("hmerbench.models.vocab.DICTIONARY", tmp_path / "reversed.txt")
    assert load_weights(weights).vocabulary.words == words == CROHME != Vocabulary().words
    header, tensors = read_tensors(weights)
    del header["words"]  # as in files of earlier versions
    weights.write_bytes(pack_tensors(tensors, header))
    assert load_weights(weights).vocabulary.words == words
    for changed in ({"words": words[::-1]}, {"words": [*words[:-1], "@"]}, {"words": 3}, {"vocabulary": "0"}):
        weights.write_bytes(pack_tensors(tensors, header | changed))
        with fails_with("its words are (damaged|not those that it was trained with); restore the file", weights):
            load_weights(weights)


@pytest.mark.parametrize("network", NETWORKS)
def test_any_network_takes_other_words(network: str, tmp_path: Path) -> None:
    vocabulary = Vocabulary((*Vocabulary().words, "@", r"\heartsuit"))
    model = build(of_its_network({"network": network, **NETWORKS[network].sizes["nano"]}), vocabulary)
    (tmp_path / "own.safetensors").write_bytes(pack_weights(model))
    loaded = load_weights(tmp_path / "own.safetensors")
    assert loaded.vocabulary.words == vocabulary.words
    assert same(loaded.state_dict(), model.state_dict())


def test_files_that_name_no_network_are_comers(weights: Path) -> None:
    header, tensors = read_tensors(weights)
    del header["words"], header["config"]["network"]
    weights.write_bytes(pack_tensors(tensors, header | {"config": header["config"] | {"vocab_size": 113}}))
    assert load_weights(weights, CONFIG).settings == CONFIG


def test_weights_of_another_network(weights: Path) -> None:
    with fails_with(
        "weights of the network comer, not densewap; choose the recipe that they were trained with", weights
    ):
        load_weights(weights, DenseWAPSettings())
    with_header(weights, config={"network": "wap"})
    with fails_with(r"unknown \(no network called 'wap'; choose one of comer, [^;]*\); update", weights):
        load_weights(weights)
    for damaged in ([1], "x", None):
        with_header(weights, config=damaged)
        with fails_with("its configuration is unknown", weights):
            load_weights(weights)


LARGER = r"do not fit the network \(its settings describe a larger one\)"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"d_model": "x"},
            r"configuration is unknown \(d_model: Input should be a valid integer\); update this suite",
        ),
        ({"heads": 8}, r"unknown \(heads: Unexpected keyword argument\)"),
        ({"num_layers": [1, 2]}, r"num_layers: must be one or three whole numbers above 0, not \[1, 2\]"),
        ({"d_model": 10**9, "nhead": 1}, LARGER),
        ({"num_layers": 10**9}, LARGER),
        ({"num_decoder_layers": 2000}, LARGER),
        ({"dc": 10**12}, LARGER),
    ],
)
def test_settings_that_are_unknown_or_need_more_than_the_file_has(
    weights: Path, changes: dict[str, object], words: str
) -> None:
    """They take no memory that the file does not fill."""
    header, _ = read_tensors(weights)
    with_header(weights, config=header["config"] | changes)
    with fails_with(words, weights):
        load_weights(weights)


def test_missing_damaged_and_foreign_files(weights: Path, tmp_path: Path) -> None:
    with fails_with("no such weights file", tmp_path / "none"):
        load_weights(tmp_path / "none")
    content = weights.read_bytes()
    for name, damaged in {"cut": content[: len(content) // 2], "empty": b"", "text": b"hello" * 99}.items():
        (tmp_path / name).write_bytes(damaged)
        with fails_with("damaged, or not a safetensors file", tmp_path / name):
            load_weights(tmp_path / name)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"x": torch.zeros(2)}, foreign)
    with fails_with("not a weights file of this suite", foreign):
        load_weights(foreign)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ('{"format": "x", "format": "x"}', "the key 'format' occurs twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": NaN}', "NaN is not a finite number"),
        ("{", "Expecting property name"),
    ],
)
def test_headers_are_read_strictly(tmp_path: Path, header: str, words: str) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "x.safetensors", {"hmerbench": header})
    with fails_with(words, tmp_path / "x.safetensors"):
        load_weights(tmp_path / "x.safetensors")


def test_a_language_model_takes_no_memory_that_its_file_does_not_fill(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    model = LanguageModel(LanguageConfig(hidden=4, filters=1), Lexicon.of(["a", "b"]))
    path.write_bytes(pack_language_model(model))
    assert load_language_model(path).lexicon.words == model.lexicon.words
    header, tensors = read_tensors(path)
    for changes, words in (
        ({"model": header["model"] | {"hidden": 10**9}}, "its settings describe a larger one"),
        ({"model": header["model"] | {"layers": 10**9}}, "layers: Input should be less than or equal to 100"),
        ({"model": header["model"] | {"widths": 10**9}}, "widths: Input should be less than or equal to 65"),
        ({"words": ["a" * 10_000, *map(str, range(10_000))]}, "do not fit its 10,001 words"),
        ({"words": [["a"], "b"]}, "its configuration is unknown"),
    ):
        path.write_bytes(pack_tensors(tensors, header | changes))
        with fails_with(words, path):
            load_language_model(path)


# The authors' checkpoints


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("self_", [True, False])
def test_authors_checkpoint(cross: bool, self_: bool, tmp_path: Path) -> None:
    model = CoMER(replace(CONFIG, cross_coverage=cross, self_coverage=self_, dropout=0.25))
    ckpt = lightning(tmp_path / "epoch=151.ckpt", model)
    with pytest.raises((ModuleNotFoundError, pickle.UnpicklingError)):  # the classes do not exist
        torch.load(ckpt, weights_only=False)
    found = import_lightning(ckpt)
    assert found.settings == model.settings
    assert same(dict(found.state_dict()), dict(model.state_dict()))


def test_checkpoint_without_hyperparameters(model: CoMER, tmp_path: Path) -> None:
    found = import_lightning(lightning(tmp_path / "a.ckpt", model, hyper_parameters={}))
    assert found.settings == CONFIG  # shapes give everything but dropout, which keeps its default
    one = CoMER(replace(CONFIG, self_coverage=False))
    ckpt = lightning(tmp_path / "b.ckpt", one, hyper_parameters={})
    with fails_with("no hyperparameter says which", ckpt):
        import_lightning(ckpt)


class Touch:
    """Creates a file when unpickled, as an attack would run a command."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return exec, (f"open({str(self.target)!r}, 'w').close()",)


@pytest.mark.parametrize("place", ["callbacks", "hyper_parameters", "state_dict"])
def test_malicious_checkpoint_runs_nothing(place: str, model: CoMER, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    ckpt = lightning(tmp_path / "bad.ckpt", model, **{place: Touch(marker)})
    if place == "state_dict":
        with fails_with("no tensors named comer_model", ckpt):
            import_lightning(ckpt)
    else:
        assert same(dict(import_lightning(ckpt).state_dict()), dict(model.state_dict()))
    assert not marker.exists()
    pickle.loads(pickle.dumps(Touch(marker)))
    assert marker.exists()  # the attack would have worked


class Hashable(enum.Enum):
    """Stands as a key, and refers to its class."""

    KEY = 1


OBJECTS = [
    np.float64(0.5), np.zeros(3), np.random.default_rng(0), np.dtype("f4"), np.datetime64("2020-01-01"), np.ma.zeros(2),
    functools.partial(int, base=2), collections.deque([1, 2], maxlen=5), collections.defaultdict(list, {1: [2]}),
    {Hashable.KEY: 1, frozenset([1]): 2, Path("x"): 3}, argparse.Namespace(a=1), range(3), slice(1, 2), 1j, b"bytes",
    datetime.datetime(2020, 1, 1), decimal.Decimal("1"), 10**700, len, int, torch.float32, torch.eye(3).to_sparse(),
    torch.nn.Linear(2, 2), torch.Size([1]), torch.zeros(2).half(), "abc".join,
]  # fmt: skip


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: type(thing).__name__)
@pytest.mark.parametrize("protocol", [2, 4])
def test_any_object_in_a_checkpoint_is_replaced(thing: object, protocol: int, model: CoMER, tmp_path: Path) -> None:
    """Whatever its state is; Lightning keeps callbacks, loops, optimizers and schedulers beside the weights."""
    state = {f"comer_model.{name}": tensor for name, tensor in model.state_dict().items()}
    content = {"best_score": thing, "state_dict": state, "hyper_parameters": {"dropout": 0.25, "thing": thing}}
    torch.save(content, tmp_path / "x.ckpt", pickle_protocol=protocol)
    found = import_lightning(tmp_path / "x.ckpt")
    assert vars(found.settings)["dropout"] == 0.25 and same(dict(found.state_dict()), dict(model.state_dict()))


def test_a_checkpoint_cannot_change_what_reads_it(model: CoMER, tmp_path: Path) -> None:
    """A pickle may give a state to a class or function that it names: here, to those that read tensors."""
    ckpt = lightning(tmp_path / "x.ckpt", model)
    state = b"N}X\x07\x00\x00\x00__new__Ns\x86b0"  # (None, {"__new__": None}): to be set as an attribute
    names = (b"torch._utils\n_rebuild_tensor_v2", b"collections\nOrderedDict", b"torch\nFloatStorage")
    opening = b"\x80\x02" + b"".join(b"c" + name + b"\n" + state for name in names)
    with zipfile.ZipFile(ckpt) as old, zipfile.ZipFile(tmp_path / "y.ckpt", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, opening + content[2:] if name.endswith("data.pkl") else content)
    assert same(dict(import_lightning(tmp_path / "y.ckpt").state_dict()), dict(model.state_dict()))
    assert same(dict(import_lightning(ckpt).state_dict()), dict(model.state_dict()))


def compressed(path: Path, name: str, size: int) -> Path:
    """The checkpoint with a record that unpacks to `size` zeros."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path.with_name("bomb.ckpt"), "w", zipfile.ZIP_DEFLATED) as new:
        for record in old.namelist():
            new.writestr(record, bytes(size) if record.endswith(name) else old.read(record))
    return path.with_name("bomb.ckpt")


@pytest.mark.parametrize("name", ["data.pkl", "data/0"])
def test_a_checkpoint_that_unpacks_to_much_more_is_refused(name: str, model: CoMER, tmp_path: Path) -> None:
    bomb = compressed(lightning(tmp_path / "x.ckpt", model), name, 50_000_000)
    with fails_with(r"unreadable checkpoint \([\d,]+ bytes that unpack to 5[\d,]+\)", bomb):
        import_lightning(bomb)


def test_one_number_is_no_network(tmp_path: Path) -> None:
    """Views of it may have any shape."""
    model = CoMER(replace(CONFIG, d_model=64))
    views = {f"comer_model.{name}": torch.zeros(()).expand(x.shape) for name, x in model.state_dict().items()}
    with fails_with("a tensor that extends beyond its numbers", tmp_path / "x.ckpt"):
        import_lightning(lightning(tmp_path / "x.ckpt", model, state_dict=views))
    one = torch.zeros(max(x.numel() for x in model.state_dict().values()))
    shared = {f"comer_model.{name}": one[: x.numel()].view(x.shape) for name, x in model.state_dict().items()}
    with fails_with("its tensors share their numbers", tmp_path / "y.ckpt"):
        import_lightning(lightning(tmp_path / "y.ckpt", model, state_dict=shared))


def test_unusable_checkpoints(model: CoMER, tmp_path: Path) -> None:
    good = lightning(tmp_path / "good.ckpt", model)
    with fails_with("there is no such file", tmp_path / "none.ckpt"):
        import_lightning(tmp_path / "none.ckpt")
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(good.read_bytes()[:-5000])
    with fails_with("damaged, or not a checkpoint", cut):
        import_lightning(cut)
    state = {f"comer_model.{name}": tensor for name, tensor in model.state_dict().items()}
    fewer = {name: tensor for name, tensor in state.items() if not name.endswith("post_norm.weight")}
    wrong = {"Missing.*encoder.model.post_norm.weight": fewer}
    wrong["Unexpected.*extra"] = state | {"comer_model.extra": torch.zeros(1)}
    wrong["size mismatch for decoder.proj.bias"] = state | {"comer_model.decoder.proj.bias": torch.zeros(7)}
    wrong["no sizes can be inferred"] = {"comer_model.extra": torch.zeros(1)}
    wrong["no tensors named"] = {"bttr_model.extra": torch.zeros(1)}
    for words, tensors in wrong.items():
        ckpt = lightning(tmp_path / "wrong.ckpt", model, state_dict=tensors)
        with fails_with(words, ckpt):
            import_lightning(ckpt)


def test_tensors_beyond_their_storage(model: CoMER, tmp_path: Path) -> None:
    """A view that extends beyond its storage must not read foreign memory."""

    class Beyond:
        def __reduce__(self) -> Any:
            storage = torch.zeros(4).untyped_storage()
            return _rebuild_tensor_v2, (
                torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True),
                0, (1000,), (1,), False, {},
            )  # fmt: skip

    ckpt = lightning(tmp_path / "beyond.ckpt", model, callbacks=Beyond())
    with fails_with("unreadable checkpoint", ckpt) as caught:
        import_lightning(ckpt)
    assert "weights_only" not in str(caught.value)
