"""Recipes and presets: every shipped one is valid, and faults are reported in one line."""

import copy
import json
import re
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import yaml

from hmerbench.benchmarks import language_settings
from hmerbench.benchmarks.config import FILLED_IN, SCHEMA, Config, Language, Optimizer, Together, Training
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.language_settings import LanguageSettings
from hmerbench.benchmarks.recognition.predict import predict
from hmerbench.benchmarks.report.paper import ORDER
from hmerbench.benchmarks.resolve import PRESETS, load, names, resolve, settable
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.listing import forget_trainings
from hmerbench.benchmarks.strict_files import flat, to_yaml
from hmerbench.benchmarks.training.trainer import train
from hmerbench.evaluation import strict
from hmerbench.models.settings import NETWORKS
from tests.helpers.made_up import put_history
from tests.helpers.paths import MEDIUM, ROOT

RECIPES = names("recipes")


def test_every_preset_has_its_place() -> None:
    assert names("presets") == sorted(PRESETS)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_recipe_resolves_with_every_preset(recipe, preset):
    config = resolve(recipe, preset, 7)
    if recipe not in ORDER:  # of the paper's Table 1
        return
    assert vars(config.model)["cross_coverage"] == (recipe in ("comer-cross", "comer-fusion"))
    assert vars(config.model)["self_coverage"] == (recipe in ("comer-self", "comer-fusion"))
    fusion = resolve("comer-fusion", preset, 7).augmentation
    assert config.augmentation == (fusion and fusion.model_copy(update={"scale": None}) if recipe == "bttr" else fusion)


@pytest.mark.parametrize("experiment", sorted(ROOT.glob("results/experiments/*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_is_a_preset_that_resolves(experiment):
    assert resolve("comer-fusion", str(experiment), 7).preset == experiment.stem


def test_paper_is_the_authors_training():
    config = resolve("comer-fusion", "paper", 7)
    t = config.training
    o = t.optimizer
    assert (o.name, o.lr, o.momentum, o.weight_decay) == ("sgd", 0.08, 0.9, 1e-4)
    assert (t.epochs, t.schedule.factor, t.schedule.patience, t.validate_every) == (300, 0.25, 10, 2)
    assert (t.batching.size, t.batching.micro_batches, t.batching.pixels) == (8, 4, 320_000)
    assert (config.select, config.search.beam_size, config.search.max_len) == ("2014", 10, 200)


SMALL = flat(resolve("comer-fusion", "small", 7).model_dump())


def another(value: Any) -> Any:
    """A value that differs, of the same type; for None, a number."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}2"
    if isinstance(value, tuple):
        return tuple(map(another, value))
    return (value or 3) - 1


def with_other(config: Config, path: str) -> Config:
    """The configuration with the setting at `path` changed, without validation, which would forbid some."""
    value, keys, parents = another(SMALL[path]), path.split("."), [config]
    for key in keys[:-1]:
        parents.append(getattr(parents[-1], key))
    for parent, key in zip(reversed(parents), reversed(keys), strict=True):
        update = {key: value}
        if is_dataclass(parent):
            value = copy.copy(parent)
            object.__setattr__(value, key, update[key])
        else:
            value = parent.model_copy(update=update)
    return value


@pytest.mark.parametrize("path", SMALL)
def test_another_setting_is_another_run(path, tmp_path):
    made = resolve("comer-fusion", "small", 7)
    (tmp_path / "config.yaml").write_text(made.to_yaml())
    (tmp_path / "best.safetensors").touch()
    RunFolder(tmp_path, made).refuse_training()
    other = RunFolder(tmp_path, with_other(made, path))
    assert other.settings.digest != made.digest
    stages = (
        other.refuse_other,
        lambda: predict(other, None, []),  # type: ignore[arg-type]
        lambda: train(other, None),  # type: ignore[arg-type]
    )
    for stage in stages[: 2 if path == "schema_version" else 3]:
        with pytest.raises(UserError) as error:
            stage()
        message = str(error.value)
        assert f"({path} " in message and message.count(" instead of ") == 1 and "\n" not in message
        assert "config.yaml: the folder holds a run of other settings" in message and "choose another" in message
    assert (tmp_path / "config.yaml").read_text() == made.to_yaml()


def test_a_language_model_is_a_setting_only_where_there_is_one(tmp_path):
    """Runs from before there was one keep their settings; with one, the run is tied to the content of its file."""
    plain, weights, preset = resolve("comer-fusion", "smoke", 7), tmp_path / "lm", tmp_path / "smoke.yaml"
    assert "language" not in plain.model_dump()["search"] and "language" not in plain.to_yaml()
    digests, names = {plain.digest}, {plain.search.name}
    for content, weight in (("one", 0.1), ("two", 0.1), ("two", 0.2)):
        weights.write_text(content)
        preset.write_text(f"base: smoke\nsearch: {{language: {{weights: {weights}, weight: {weight}}}}}")
        made = resolve("comer-fusion", str(preset), 7)
        (tmp_path / "config.yaml").write_text(made.to_yaml())
        assert load(tmp_path / "config.yaml") == made and len(made.search.language.digest) == 16
        digests.add(made.digest)
        names.add(made.search.name)
    assert len(digests) == 4 and len(names) == 3 and any("+language0.2,0" in name for name in names)


def test_files_of_other_runs_are_found_from_any_folder(tmp_path, monkeypatch):
    """As they are given or, where nothing is there, in the checkout; an absolute path is itself."""
    name = "results/reproduced/comer-fusion/medium-seed7"
    (preset := tmp_path / "mine.yaml").write_text(f"base: medium\nsearch: {{together: {{runs: [{name}]}}}}")
    monkeypatch.chdir(tmp_path)
    made = resolve("comer-fusion", str(preset), 7)
    assert made.search.together.runs == (name,) and made.search.together.weights == [MEDIUM / "best.safetensors"]
    (tmp_path / name).mkdir(parents=True)
    assert [*map(str, made.search.together.folders)] == [name]
    assert Language(weights=f"{name}/best.safetensors").path == MEDIUM / "best.safetensors"
    assert Language(weights=f"{tmp_path}/{name}").path == tmp_path / name


def test_fixed_statistics_are_a_setting_only_where_there_are_any():
    """Runs from before there were any keep their settings."""
    plain = resolve("comer-fusion", "medium", 7)
    assert "fixed_statistics" not in plain.model_dump()["training"] and "fixed_statistics" not in plain.to_yaml()
    fixed = [plain.changed({"training.fixed_statistics": share}) for share in (0.0, 0.25, 0.5)]
    assert fixed[0] == plain and len({config.digest for config in fixed}) == 3
    with pytest.raises(UserError, match="fixed_statistics are measured on `recalibrate` batches: set it"):
        plain.changed({"training.recalibrate": 0, "training.fixed_statistics": 0.5})


@pytest.mark.parametrize(
    ("epochs", "share", "first"),
    [(16, 0.0, 16), (16, 0.25, 12), (8, 0.02, 7), (5, 0.5, 3), (5, 0.99, 1), (2, 0.25, 1), (1, 0.5, 1)],
)
def test_at_least_one_epoch_has_fixed_statistics_and_one_has_not(epochs: int, share: float, first: int):
    training = Training(epochs=epochs, recalibrate=1, fixed_statistics=share)
    assert training.first_fixed == first


def test_other_networks_are_a_setting_only_where_there_are_any(tmp_path):
    """A run is tied to the content of their weights."""
    plain, preset = resolve("comer-fusion", "smoke", 7), tmp_path / "smoke.yaml"
    assert "together" not in plain.model_dump()["search"] and "together" not in plain.to_yaml()
    digests = {plain.digest}
    for content in ("one", "two"):
        (tmp_path / "best.safetensors").write_text(content)
        preset.write_text(f"base: smoke\nsearch: {{together: {{runs: [{tmp_path}, {tmp_path}]}}}}")
        made = resolve("comer-fusion", str(preset), 7)
        (tmp_path / "config.yaml").write_text(made.to_yaml())
        assert load(tmp_path / "config.yaml") == made and made.search.name.startswith("joint10+networks3")
        digests.add(made.digest)
    assert len(digests) == 3
    with pytest.raises(UserError, match=r"search\.together: densewap reads alone; leave it out"):
        resolve("densewap", str(preset), 7)


def test_another_default_is_another_run():
    """A run is identified by the settings it was made with, not by today's defaults."""

    class Later(Optimizer):
        momentum: float = 0.5

    made = resolve("comer-fusion", "paper", 7)
    later = made.model_copy(update={"training": made.training.model_copy(update={"optimizer": Later()})})
    assert later.digest != made.digest


def test_settings_of_an_older_version(tmp_path):
    """Its results are read, but its runs are not trained further, even if no other setting differs."""
    made = resolve("comer-fusion", "small", 7)
    (tmp_path / "config.yaml").write_text(made.to_yaml().replace(f"schema_version: {SCHEMA}\n", ""))
    older = load(tmp_path / "config.yaml")
    assert older == made.model_copy(update={"schema_version": 1})
    stored = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(stored.replace("training:\n", "training:\n  undistorted: 0.0\n"))
    assert load(tmp_path / "config.yaml") == older  # a setting that is gone, at what it is in all runs now
    (tmp_path / "config.yaml").write_text(stored.replace("training:\n", "training:\n  undistorted: 0.1\n"))
    with pytest.raises(UserError, match=r"training\.undistorted: no such key; read it with the version of the suite "):
        load(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text(f"{stored}schema_version: '8'\n")
    with pytest.raises(UserError, match=r"config\.yaml .*schema_version"):
        load(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text(stored)
    with pytest.raises(UserError, match=rf"\(schema_version 1 instead of {SCHEMA}\)"):
        RunFolder(tmp_path, made).refuse_training()
    with pytest.raises(UserError, match=f"the run has version 1 of the settings, and this suite has {SCHEMA}"):
        train(RunFolder(tmp_path, older), None)  # type: ignore[arg-type]
    put_history(tmp_path, [{}])
    with pytest.raises(UserError, match="it cannot be trained further"):
        forget_trainings([RunFolder(tmp_path, older)])
    assert RunFolder(tmp_path).history  # --force refuses before it discards
    (tmp_path / "config.yaml").write_text("recipe: r\npreset: p\nbeam: 10\n")
    with pytest.raises(UserError, match=rf"config\.yaml \(version 1 of the settings, not {SCHEMA}\): beam: "):
        load(tmp_path / "config.yaml")
    (tmp_path / "mine.yaml").write_text("schema_version: 1")
    with pytest.raises(UserError, match=r"schema_version: this is not a setting of a recipe or preset; remove it"):
        resolve("comer-fusion", str(tmp_path / "mine.yaml"), 7)


def test_the_papers_preset_is_the_defaults_and_the_list_of_keys_is_complete():
    plain = Config(recipe="comer-fusion", preset="paper").model_dump(mode="json")
    assert resolve("comer-fusion", "paper", 7).model_dump(mode="json") == plain
    plain["training"] = {name: plain["training"].get(name, 0.0) for name in Training.model_fields}
    plain["search"] |= {"language": Language().model_dump(), "together": Together().model_dump(mode="json")}
    own_keys = {name: value for name, value in flat(plain).items() if name not in FILLED_IN}
    own_keys = {name: value for name, value in own_keys.items() if not name.startswith("model.")}
    networks = {"model.network": "comer", "model.size": "published"}
    own = [(f"model.{key.name}", key.default) for network in NETWORKS.values() for key in fields(network)]
    defaults = [*own_keys.items(), *networks.items(), *(pair for pair in own if pair[0] not in networks)]
    listed = settable()
    assert [(key["name"], json.loads(key["default"])) for key in listed] == defaults
    for key in listed:
        assert re.search(r"\w.* \((\d(\.\d)+|program|ours)\)$", key["meaning"]), key
        assert key["type"]


def test_the_list_of_a_language_models_keys_is_complete():
    defaults = flat(LanguageSettings(recipe="mine").model_dump(mode="json"))
    listed = language_settings.settable()
    expected = [(name, default) for name, default in defaults.items() if name not in FILLED_IN]
    assert [(key["name"], json.loads(key["default"])) for key in listed] == expected
    assert all(re.match(r"language model: \w", key["meaning"]) and key["type"] for key in listed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainng: {}", "trainng: no such key; did you mean training?"),
        ("training: {epoch: 3}", "training.epoch: no such key; did you mean training.epochs?"),
        ("lr: 0.1", "lr: no such key; did you mean training.optimizer.lr?"),
        ("training: {zzz: 3}", "training.zzz: no such key"),
        ("training.epochs: 3", "training.epochs: no such key; write `training: {epochs: …}`"),
        ("model: {network: densewap, self_coverage: true}", "model.self_coverage: no such key (and"),
        ("training: {epochs: '3'}", "training.epochs: Input should be a valid integer"),
        ("training: {optimizer: {lr: -1.0}}", "training.optimizer.lr: Input should be greater than 0"),
        ("model: {heads: 8}", "model.heads: no such key; did you mean model.nhead?"),
        ("model: {vocab_size: 113}", "model.vocab_size: no such key"),
        ("model: {network: wap}", "model: no network called 'wap'; choose one of comer"),
        ("model: {network: weights}", "model: no network called 'weights'; choose one of comer"),  # a module
        ("model: {size: huge}", "model.size: comer has no size 'huge'; choose one of nano, micro, dense18"),
        ("model: {size: [1]}", "model.size: comer has no size [1]"),
        ("model: {nhead: 7}", "nhead must divide d_model"),
        ("model: {num_layers: [2, 4]}", "model.num_layers: must be one or three whole numbers above 0, not [2, 4]"),
        ("model: {num_layers: 0}", "model.num_layers: must be one or three whole numbers above 0, not 0"),
        ("model: {network: densewap, coverage_kernel: 4}", "model.coverage_kernel: must be odd, not 4"),
        ("model: {stride: 12}", "model.stride: Input should be 16 or 8"),
        ("search: {scales: []}", "search.scales: Tuple should have at least 1 item"),
        ("search: {scales: [-1.0]}", "search.scales.0: Input should be greater than 0"),
        ("search: {scales: [1, 1, 1, 1, 1, 1, 1, 1, 1]}", "search.scales: Tuple should have at most 8 items"),
        ("a: b: c", "not YAML"),
        ("- 1", "must hold keys and values"),
        ("select: last", "never validates"),
        ("select: first", "select: must be heldout, last or a test set, not 'first'"),
        ("select: null", "select: must be heldout, last or a test set, not 'None'"),
        ("model:", "model: must hold keys; remove it if it has none"),
        ("augmentation: 5", "augmentation: must hold keys"),
        ("select: 2014-13-01", "2014-13-01: month must be in 1..12"),
        ("2014-01-01: 3", "not YAML (keys must be str"),
        ("training: &a {epochs: *a}", "not YAML (line 1: an alias; write its value out)"),
        ("training: {optimizer: {lr: 1e300}}", "training.optimizer.lr: Input should be less than or equal to 1000"),
        ("training: {epochs: 99999999999}", "training.epochs: Input should be less than or equal to 1000000"),
        ("training: {epochs: 010}", "training.epochs: Input should be a valid integer"),
        ("training: {epochs: 1:30}", "training.epochs: Input should be a valid integer"),
        ("seed: 8", "seed: this is not a setting of a recipe or preset; remove it, and give --seed"),
        ("data: {digest: abc}", "data.digest: this is not a setting of a recipe or preset"),
        ("augmentation: {scale: [-1, 2]}", "augmentation.scale.0: Input should be greater than 0"),
        ("augmentation: {scale: [1.4, 0.7]}", "the smaller factor first, not [1.4, 0.7]"),
        ("data: {max_area: -5}", "data.max_area: Input should be greater than or equal to 1024"),
        ("data: {max_tokens: 500}", "data.max_tokens: Input should be less than 500"),
        ("search: {beam_size: 57}", "search.beam_size must be at most 56"),
        ("search: {language: {weigths: x}}", "search.language.weigths: no such key; did you mean search.language.w"),
        ("search: {language: {weight: -1.0}}", "search.language.weight: Input should be greater than or equal to 0"),
        ("search: {language: {weight: 0.3}}", "search.language: weight and length are of a language model: name its"),
        ("search: {language: {weights: nowhere}}", "there is no nowhere"),
        ("search: {together: {runs: [nowhere]}}", "search.together.runs: there is no nowhere/best.safetensors"),
        ("search: {together: {digests: [ab]}}", "search.together.digests: this is not a setting of a recipe or preset"),
    ],
)
def test_a_fault_is_reported_in_one_line(tmp_path, archive, text, message):
    """With an archive, as the commands resolve it, and without."""
    (path := tmp_path / "mine.yaml").write_text(text)
    for given in (None, open_archive(archive)):
        with pytest.raises(UserError) as error:
            resolve("comer-fusion", str(path), 7, given)
        assert message in str(error.value)
        assert "mine.yaml" in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {network: bttr-original, nheads: 8}", "model.nheads: no such key; did you mean model.nhead?"),
        ("model: {network: densewap}", "search.direction must be l2r; the network learns no other"),
        ("model: {network: bttr-original, bidirectional: false}", "search.direction must be l2r; the network learns"),
    ],
)
def test_a_fault_of_a_recipe_with_another_network(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        resolve(str(tmp_path / "mine.yaml"), "medium", 7)


def test_the_year_that_selects_may_be_unquoted(tmp_path, archive, capsys):
    """It becomes heldout only where the archive lacks that year, which is said once."""
    for year, selects in (("2014", "2014"), ("2016", "heldout")):
        (tmp_path / "mine.yaml").write_text(f"base: smoke\nselect: {year}")
        for recipe in ("comer-fusion", "bttr"):
            assert resolve(recipe, str(tmp_path / "mine.yaml"), 7, open_archive(archive)).select == selects
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("no test set 2016 in it, so a held-out part of train") == 1 and "no test set 2014" not in said


def test_a_file_may_override_another(tmp_path):
    """The base is a shipped name or a file next to it; keys that are not overridden keep the base's values."""
    small, medium = (flat(resolve("bttr", name, 7).model_dump()) for name in ("small", "medium"))
    changed = {name for name, value in medium.items() if value != small[name]}
    assert {name for name in changed if name.startswith("model.")} == set() and "training.epochs" in changed
    (tmp_path / "below.yaml").write_text("base: medium\ntraining: {epochs: 5}")
    (tmp_path / "above.yaml").write_text("base: below.yaml\ntraining: {bf16: false}")
    config = resolve("bttr", str(tmp_path / "above.yaml"), 7)
    assert (config.preset, config.training.epochs, config.training.bf16) == ("above", 5, False)
    assert config.data.sub_expressions == medium["data.sub_expressions"]


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("mine.yaml", r"mine\.yaml is based on .*mine\.yaml; remove one `base`"),
        ("nothing", "no preset called 'nothing': choose one of gpu"),
        ("missing.yaml", r"missing\.yaml: there is no such file"),
        ("[ink]", r"mine\.yaml: base: must be the name of one of the presets, or a YAML file, not \['ink'\]"),
    ],
)
def test_an_invalid_base_is_refused(tmp_path, base, message):
    (tmp_path / "mine.yaml").write_text(f"base: {base}")
    with pytest.raises(UserError, match=message):
        resolve("comer-fusion", str(tmp_path / "mine.yaml"), 7)


def test_every_number_must_be_finite(tmp_path):
    """nan, inf and -inf are refused for every float of the schema."""
    path, base = tmp_path / "mine.yaml", resolve("comer-fusion", "paper", 7).model_dump(mode="json")
    floats = [name for name, value in flat(base).items() if isinstance(value, float)]
    floats += ["training.optimizer.clip"]  # none by default
    assert len(floats) == 19
    for name in floats:
        for value in (".nan", ".inf", "-.inf"):
            path.write_text("".join(f"{'  ' * i}{key}:\n" for i, key in enumerate(name.split(".")))[:-1] + f" {value}")
            with pytest.raises(UserError, match=r"finite number|must be a number|less than|greater than"):
                resolve("bttr-baseline", str(path), 7)
    for text in (
        "augmentation: {scale: [.nan, 1.0]}",
        "augmentation: {scale: [1.0, .inf]}",
        "search: {scales: [.nan]}",
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=r"finite number|less than|greater than"):
            resolve("bttr-baseline", str(path), 7)


@pytest.mark.parametrize("rate", ["1e-3", "1.0e-3", "0.001", "1E-3", ".001", "10.e-4"])
def test_notations_of_a_number(tmp_path, rate):
    (tmp_path / "mine.yaml").write_text(f"training: {{optimizer: {{lr: {rate}}}}}")
    assert resolve("bttr", str(tmp_path / "mine.yaml"), 7).training.optimizer.lr == 0.001


@pytest.mark.parametrize("text", ["7e3f00aa", "12e53", "1e-3", "010", "1:30", "2014", ".5", ".inf", "no", "2014-01-01"])
def test_text_is_not_read_back_as_a_number(tmp_path, text):
    """As the name of a preset (mine/1e-3.yaml) or a digest may look like one."""
    made = resolve("bttr", "smoke", 7).changed({"data.digest": text, "data.name": text})
    (tmp_path / "config.yaml").write_text(made.to_yaml())
    assert load(tmp_path / "config.yaml") == made


@pytest.mark.parametrize("network", NETWORKS.values(), ids=list(NETWORKS))
def test_a_size_counts_its_dense_layers(network):
    counts = {name: network(**keys).dense_layers for name, keys in network.sizes.items() if name.startswith("dense")}
    assert counts == {"dense14": 14, "dense18": 18, "dense24": 24, "dense28": 28}


def test_a_folder_whose_model_holds_nothing_is_refused(tmp_path):
    made = resolve("comer-fusion", "small", 7)
    (tmp_path / "config.yaml").write_text(to_yaml(made.model_dump(mode="json") | {"model": None}))
    with pytest.raises(UserError, match=r"config\.yaml: model"):
        RunFolder(tmp_path, made).refuse_training()


def test_a_file_with_the_name_of_a_shipped_recipe_is_that_recipe(tmp_path):
    """Settings by which the paper's rows differ tell no seeds of a row apart."""
    (mine := tmp_path / "bttr.yaml").write_text(shipped := (ROOT / "benchmarks/recipes/bttr.yaml").read_text())
    assert resolve(str(mine), "smoke", 7) == resolve("bttr", "smoke", 7)
    mine.write_text(shipped + "search:\n  direction: l2r\n")
    with pytest.raises(UserError, match=r"bttr\.yaml: is not the recipe bttr.*; rename it"):
        resolve(str(mine), "smoke", 7)


def test_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Config(recipe="r", preset="p").seed = 3  # type: ignore[misc]


def test_a_folder_older_than_a_key_accepts_its_own_settings(tmp_path):
    """Like committed runs: `predict FOLDER` and `evaluate` take the settings from the folder itself."""
    older = yaml.safe_load(resolve("comer-fusion", "smoke", 7).to_yaml())
    del older["schema_version"], older["data"]["sub_expressions"], older["data"]["ink"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(older))
    RunFolder(tmp_path, load(tmp_path / "config.yaml")).refuse_other()
    with pytest.raises(UserError, match="schema_version 1 instead of"):
        RunFolder(tmp_path, resolve("comer-fusion", "smoke", 7)).refuse_other()


TRICKY = ["010", "1:30", "1e-3", "1_000", ".5", "-.inf", "1.", "+1", "0x1f"]
TRICKY += ["2014-01-01", "2014", "yes", "null", "~", "a b"]


def test_the_fast_loader_reads_what_the_strict_one_does() -> None:
    """It is for plain text alone, as all settings are that runs write."""
    shipped = [path.read_text() for path in (ROOT / "results/reproduced").rglob("*.yaml")]
    assert shipped and all(strict._PLAIN.fullmatch(text) for text in shipped)
    for text in [*shipped, *(f"a: {value}\nb:\n- {value}\n- [{value}, x]\nc:\n  d: {value}\n" for value in TRICKY)]:
        assert repr(strict.parse_yaml(text)) == repr(yaml.load(text, strict.Loader)), text
    for text in ("a: 1\na: 2\n", "a:\n  b: 1\n  b: 2\n", "a: &b 1\nc: *b\n", "- - - - a\n", "a: [b\n", "a: {b: 1}\n"):
        try:
            expected = repr(yaml.load(text, strict.Loader))
        except yaml.YAMLError as error:
            with pytest.raises(yaml.YAMLError, match=re.escape(str(error))):
                strict.parse_yaml(text)
        else:
            assert repr(strict.parse_yaml(text)) == expected
