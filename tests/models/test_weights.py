"""Weights files: round trip and damage; import of the authors' checkpoints without executing anything in them."""

import pickle
import sys
import types
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch._utils import _rebuild_tensor_v2

from hmerbench.models.authors_checkpoint import import_lightning
from hmerbench.models.comer import CoMER
from hmerbench.models.errors import CheckpointError
from hmerbench.models.settings import CoMERSettings, DenseWAPSettings
from hmerbench.models.vocab import Vocabulary
from hmerbench.models.weights import load_weights, pack_tensors, pack_weights, read_tensors

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


def test_round_trip(model: CoMER, weights: Path) -> None:
    loaded = load_weights(weights, CONFIG)
    assert loaded.settings == CONFIG == load_weights(weights).settings
    assert same(loaded.state_dict(), model.state_dict())
    before = weights.read_bytes()
    weights.write_bytes(pack_weights(loaded))
    assert weights.read_bytes() == before


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


def test_other_vocabulary(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reversed.txt").write_text("\n".join(reversed(Vocabulary().words[3:])))
    monkeypatch.setattr("hmerbench.models.vocab.DICTIONARY", tmp_path / "reversed.txt")
    with fails_with(r"another vocabulary \('!' where this suite has '}'\); restore", weights):
        load_weights(weights)
    header, tensors = read_tensors(weights)
    del header["words"]  # as in files of earlier versions
    weights.write_bytes(pack_tensors(tensors, header))
    with fails_with("another vocabulary; restore", weights):
        load_weights(weights)


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
    header, tensors = read_tensors(weights)
    weights.write_bytes(pack_tensors(tensors, header | {"config": {"network": "wap"}}))
    with fails_with(r"unknown \(no network called 'wap'; choose one of comer, [^;]*\); update", weights):
        load_weights(weights)
    for damaged in ([1], "x", None):
        weights.write_bytes(pack_tensors(tensors, header | {"config": damaged}))
        with fails_with("its configuration is unknown", weights):
            load_weights(weights)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_model": "x"}, "d_model: Input should be a valid integer"),
        ({"heads": 8}, "heads: Unexpected keyword argument"),
        ({"num_layers": [1, 2]}, r"num_layers: must be one or three whole numbers above 0, not \[1, 2\]"),
    ],
)
def test_unknown_configuration(weights: Path, changes: dict[str, object], words: str) -> None:
    header, tensors = read_tensors(weights)
    weights.write_bytes(pack_tensors(tensors, header | {"config": header["config"] | changes}))
    with fails_with(rf"its configuration is unknown \({words}\); update this suite", weights):
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


def test_round_trip_of_blocks_that_differ_in_depth(tmp_path: Path) -> None:
    model = CoMER(replace(CONFIG, num_layers=(1, 2, 3)))
    (tmp_path / "weights.safetensors").write_bytes(pack_weights(model))
    loaded = load_weights(tmp_path / "weights.safetensors")
    assert loaded.settings == model.settings and type(vars(loaded.settings)["num_layers"]) is tuple


# The authors' checkpoints


def lightning(path: Path, model: CoMER, **more: Any) -> Path:
    """A checkpoint as Lightning 1.4 writes it: classes as keys, dict-like hyperparameters, optimizer state."""
    module = types.ModuleType("pytorch_lightning_like")
    callback = type("ModelCheckpoint", (), {"__module__": module.__name__})
    attributes = type("AttributeDict", (dict,), {"__module__": module.__name__})
    vars(module).update(ModelCheckpoint=callback, AttributeDict=attributes)
    hyperparameters = {key: value for key, value in asdict(model.settings).items() if key != "network"}
    parameters = list(model.parameters())
    content = {
        "epoch": 151,
        "global_step": 57151,
        "pytorch-lightning_version": "1.4.9",
        "state_dict": {f"comer_model.{name}": tensor for name, tensor in model.state_dict().items()}
        | {"exprate_recorder.total_line": torch.tensor(0.0)},
        "callbacks": {callback: {"best_model_score": torch.tensor(0.6), "object": callback()}},
        "optimizer_states": [{"state": {0: {"momentum_buffer": parameters[0]}}, "param_groups": []}],
        "hyper_parameters": attributes(hyperparameters | {"learning_rate": 0.08, "patience": 20}),
    }
    sys.modules[module.__name__] = module
    try:
        torch.save(content | more, path)
    finally:
        del sys.modules[module.__name__]
    return path


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
    with fails_with("unreadable checkpoint", ckpt):
        import_lightning(ckpt)
