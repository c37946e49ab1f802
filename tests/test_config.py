"""Recipes and presets: every shipped one parses, and what is wrong in one is said in a line."""

import pytest

from benchmarks import config as configs
from benchmarks.config import Augmentation, Config
from benchmarks.errors import UserError
from models import CoMERConfig

RECIPES = ["bttr", "bttr-baseline", "comer-cross", "comer-fusion", "comer-self"]


def test_the_five_rows_are_shipped():
    assert configs.names("recipes") == RECIPES
    assert configs.names("presets") == ["fast", "laptop", "paper", "smoke"]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("preset", ["fast", "laptop", "paper", "smoke"])
def test_every_recipe_resolves_with_every_preset(recipe, preset):
    config = configs.resolve(recipe, preset, 7)
    assert config.model.cross_coverage == (recipe in ("comer-cross", "comer-fusion"))
    assert config.model.self_coverage == (recipe in ("comer-self", "comer-fusion"))
    assert (config.augmentation is None) == (recipe == "bttr")


def test_paper_is_the_authors_training():
    config = configs.resolve("comer-fusion", "paper", 7)
    assert config.model == CoMERConfig()
    assert config.augmentation == Augmentation()
    t = config.training
    assert (t.optimizer.name, t.optimizer.lr, t.optimizer.momentum, t.optimizer.weight_decay) == (
        "sgd",
        0.08,
        0.9,
        1e-4,
    )
    assert (t.epochs, t.schedule.factor, t.schedule.patience, t.validate_every) == (300, 0.25, 10, 2)
    assert (t.batching.size, t.batching.micro_batches, t.batching.pixels) == (8, 4, 320_000)
    assert (config.select, config.search.beam_size, config.search.max_len) == ("2014", 10, 200)


def test_digest_follows_everything_that_matters(tmp_path):
    base = configs.resolve("comer-fusion", "paper", 7)
    digests = {base.digest, configs.resolve("comer-fusion", "paper", 8).digest}
    digests |= {configs.resolve("bttr", "paper", 7).digest, configs.resolve("comer-fusion", "fast", 7).digest}
    assert len(digests) == 4
    (tmp_path / "config.yaml").write_text(base.to_yaml())
    again = configs.load(tmp_path / "config.yaml")
    assert again == base
    assert again.digest == base.digest
    older = base.to_yaml().replace("  stride: 16\n", "")  # of a version whose schema had one key less
    assert older != base.to_yaml()
    (tmp_path / "config.yaml").write_text(older)
    assert configs.load(tmp_path / "config.yaml").digest == base.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trainng: {}", "trainng: no such key; did you mean training?"),
        ("training: {epoch: 3}", "training.epoch: no such key; did you mean training.epochs?"),
        ("lr: 0.1", "lr: no such key; did you mean training.optimizer.lr?"),
        ("training: {zzz: 3}", "training.zzz: no such key"),
        ("training: {epochs: many}", "training.epochs: Input should be a valid integer"),
        ("training: {epochs: '3'}", "training.epochs: Input should be a valid integer"),
        ("training: {optimizer: {lr: -1.0}}", "training.optimizer.lr: Input should be greater than 0"),
        ("model: {heads: 8}", "model.heads: no such key; did you mean model.nhead?"),
        ("model: {vocab_size: 50}", "model.vocab_size must be 113"),
        ("model: {nhead: 7}", "nhead must divide d_model"),
        ("search: {scales: []}", "search.scales: Tuple should have at least 1 item"),
        ("search: {scales: [1.0, -1.0]}", "search.scales.1: Input should be greater than 0"),
        ("training: [1]", "training: "),
        ("a: b: c", "not YAML"),
        ("- 1", "must hold keys and values"),
        ("select: last", "never validates"),
        ("select: first", "select: String should match"),
        ("seed: 8", "seed: no setting of a recipe or preset; take it out, give it as --seed"),
        ("data: {digest: abc}", "data.digest: no setting of a recipe or preset"),
        ("augmentation: {scale: [-1, 2]}", "augmentation.scale.0: Input should be greater than 0"),
        ("augmentation: {scale: [1.4, 0.7]}", "the smaller factor first, not [1.4, 0.7]"),
        ("data: {max_area: -5}", "data.max_area: Input should be greater than 0"),
        ("data: {max_tokens: 500}", "data.max_tokens: Input should be less than 500"),
        ("search: {beam_size: 57}", "search.beam_size must be at most 56"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        configs.resolve("comer-fusion", str(path), 7)
    assert said in str(error.value)
    assert "mine.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_no_number_of_the_schema_may_be_infinite(tmp_path):
    """Every float by its name, each of them given nan, inf and -inf."""
    path, base = tmp_path / "mine.yaml", configs.resolve("comer-fusion", "paper", 7).model_dump(mode="json")
    floats = [name for name in configs.schema() if isinstance(_at(base, name), float)]
    floats += ["training.optimizer.clip"]  # none by default
    assert len(floats) == 18
    for name in floats:
        for value in (".nan", ".inf", "-.inf"):
            path.write_text("".join(f"{'  ' * i}{key}:\n" for i, key in enumerate(name.split(".")))[:-1] + f" {value}")
            with pytest.raises(UserError, match=r"finite number|must be a number|less than|greater than"):
                configs.resolve("bttr-baseline", str(path), 7)
    for value in ("[.nan, 1.0]", "[1.0, .inf]"):
        for name in ("augmentation: {scale:", "search: {scales:"):
            path.write_text(f"{name} {value}}}")
            with pytest.raises(UserError, match=r"finite number|less than|greater than"):
                configs.resolve("bttr-baseline", str(path), 7)


def _at(config, name):
    for part in name.split("."):
        config = config[part]
    return config


@pytest.mark.parametrize("rate", ["1e-3", "1.0e-3", "0.001", "1E-3"])
def test_numbers_as_people_write_them(tmp_path, rate):
    (tmp_path / "mine.yaml").write_text(f"training: {{optimizer: {{lr: {rate}}}}}")
    assert configs.resolve("bttr", str(tmp_path / "mine.yaml"), 7).training.optimizer.lr == 0.001


def test_unknown_names_list_the_known():
    with pytest.raises(UserError, match=r"no recipe called 'comer'.*comer-fusion"):
        configs.resolve("comer", "paper", 7)
    with pytest.raises(UserError, match="no such file"):
        configs.resolve("comer-fusion", "nowhere.yaml", 7)


def test_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Config(recipe="r", preset="p").seed = 3  # type: ignore[misc]
