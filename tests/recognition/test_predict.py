"""From the hypotheses of a search to predictions."""

import shutil
import weakref
from dataclasses import replace

import pytest
import torch

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.errors import Lost, UserError
from hmerbench.benchmarks.recognition import predict
from hmerbench.benchmarks.recognition.predict import ranked, recognize
from hmerbench.evaluation.symlg import Unconverted, from_latex
from hmerbench.models.comer import CoMER
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.language import LINE_END, LanguageModel, Lexicon, pack_language_model
from hmerbench.models.network import build
from hmerbench.models.settings import NETWORKS, LanguageConfig
from hmerbench.models.vocab import Vocabulary
from tests.helpers.fork_server import forked
from tests.helpers.made_up_jobs import is_killed
from tests.helpers.tiny import tiny_archive, tiny_config, untrained_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[CoMER, Config, list[Sample]]:
    """A network that has learned nothing, so that most of its hypotheses are no valid expressions."""
    folder = tiny_archive(tmp_path_factory.mktemp("tiny"))
    config = tiny_config(folder, {"search": {"beam_size": 10, "max_len": 4}})
    torch.manual_seed(3)
    model, words = build(config.model).eval(), Vocabulary().ids
    assert isinstance(model, CoMER)
    with torch.no_grad():  # make it prefer hypotheses that do not convert
        model.decoder.proj.bias[[words["{"], words["}"], words["x"]]] += torch.tensor([1.0, 1.0, 2.0])
    return model, config, open_archive(folder).samples("2014")


def changed(config: Config, **search: object) -> Config:
    return config.changed({"search": search})


def converts(hypothesis: Hypothesis) -> bool:
    try:
        from_latex(Vocabulary().decode(hypothesis.ids))
    except Unconverted:
        return False
    return True


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_that_overflows_is_refused(untrained, network: str) -> None:
    """Rather than read as if nothing were there, also where a search waits for hypotheses that end."""
    _, config, samples = untrained
    model = build(NETWORKS[network](**NETWORKS[network].sizes["nano"])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    direction = model.settings.directions[0]
    with pytest.raises(UserError, match="the network overflows on this image"):
        predict.ConfiguredSearcher(model, changed(config, direction=direction), CPU)(samples[:1])


@pytest.mark.parametrize("scales", [(1.0,), (1.0, 1.5)])
def test_a_batch_is_halved_when_memory_runs_out(untrained, monkeypatch, capsys, scales) -> None:
    model, config, samples = untrained
    config, sizes, room, real = changed(config, batch_size=5, scales=scales), [], 2, predict.searcher
    expected = recognize(model, config, samples, CPU, "2014")

    before: list[weakref.ref] = []

    def scarce(network):
        read = real(network)

        def reading(views, options):
            images, _ = views[0]
            assert not any(earlier() is not None for earlier in before)  # tensors that did not fit have been freed
            before.append(weakref.ref(images))
            sizes.append(len(images))
            if len(images) > room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has 2 GiB.")
            return read(views, options)

        return reading

    monkeypatch.setattr(predict, "searcher", scarce)
    found = recognize(model, config, samples, CPU, "2014")
    assert max(sizes) > room and {**found}.keys() == {**expected}.keys()
    for name, (tokens, hypotheses) in expected.items():
        assert found[name][0] == tokens
        assert [h.ids for h in found[name][1]] == [h.ids for h in hypotheses]
        # some processors round the products of a smaller batch differently
        assert [h.score for h in found[name][1]] == pytest.approx([h.score for h in hypotheses], rel=1e-5)
    assert "9.00 GiB: 5 images" in " ".join(capsys.readouterr().err.split())
    room = 0
    with pytest.raises(
        UserError, match=r"^w\d_\d: .*Tried to allocate 9\.00 GiB, to search it \(\d+ x \d+ px\); CUDA_VISIBLE"
    ):
        recognize(model, config, samples, CPU, "2014")


def test_the_best_hypothesis_that_converts_is_predicted(untrained) -> None:
    model, config, samples = untrained
    plain = recognize(model, config, samples, CPU, "2014")
    chosen = recognize(model, changed(config, convertible=True), samples, CPU, "2014")
    moved = 0
    for name, (tokens, hypotheses) in chosen.items():
        best = next(h for h in plain[name][1] if converts(h))
        assert hypotheses == [best, *(h for h in plain[name][1] if h is not best)]
        assert tokens == tuple(Vocabulary().decode(best.ids))
        moved += hypotheses != plain[name][1]
    assert moved > 0  # else the test would show nothing


def test_if_nothing_converts_the_best_is_predicted(untrained) -> None:
    config = changed(untrained[1], convertible=True)
    brace = Hypothesis((Vocabulary().ids["{"],), -1.0, -0.5, -0.5, "l2r")
    both = [brace, replace(brace, score=-2.0)]
    assert ranked(both, config, Vocabulary()) == both
    assert ranked([], config, Vocabulary()) == []


def test_a_language_model_takes_part_where_the_settings_name_one(untrained, tmp_path) -> None:
    """It ranks what the search found; a reward for length alone shows who wins without knowing its probabilities."""
    model, config, samples = untrained
    weights = tmp_path / "lm.safetensors"
    lexicon = Lexicon.of([LINE_END, *Vocabulary().words])
    weights.write_bytes(pack_language_model(LanguageModel(LanguageConfig(hidden=3), lexicon)))
    plain = recognize(model, config, samples, CPU, "2014")
    for length, reverse in ((5.0, True), (-5.0, False)):
        named = changed(config, language={"weights": str(weights), "length": length})
        found = recognize(model, named, samples, CPU, "2014")
        for id_, (tokens, hypotheses) in found.items():
            lengths = [len(hypothesis.ids) for hypothesis in hypotheses]
            assert lengths == sorted(lengths, reverse=reverse) and len(tokens) == lengths[0]
            assert {h.ids for h in hypotheses} == {h.ids for h in plain[id_][1]}


def test_a_search_at_several_scales_gives_other_hypotheses(untrained) -> None:
    model, config, samples = untrained
    once = recognize(model, config, samples, CPU, "2014")
    twice = recognize(model, changed(config, scales=(1.0, 1.5)), samples, CPU, "2014")
    assert once.keys() == twice.keys() and once != twice


def test_the_signature_names_the_search(untrained) -> None:
    _, config, _ = untrained
    assert config.search.name == "joint10"
    assert changed(config, convertible=True).search.name == "joint10+convertible"
    assert changed(config, scales=(1.3,)).search.name == "joint10+sizes1.3"
    assert changed(config, alpha=0.25).search.name == "joint10+alpha0.25"
    assert changed(config, language={"weights": "lm", "weight": 0.2}).search.name == "joint10+language0.2,0"
    assert changed(config, scales=(1.0,), convertible=False).digest == config.digest  # runs keep their names


def test_several_processes_read_what_one_does(tmp_path, monkeypatch) -> None:
    """A part of the batches each, of all test sets together, whose ids may be the same."""
    archive = tiny_archive(tmp_path / "data")
    shutil.copytree(archive / "data/2014", archive / "data/2016")
    settings = {"training": {"batching": {"order": "shape"}}}
    run = untrained_run(tmp_path / "run", tiny_config(archive, settings))
    written = []
    monkeypatch.setattr(predict, "get_context", {"spawn": forked()}.__getitem__)  # the same, in a second less each
    for processes in (1, 2):
        monkeypatch.setattr(predict, "search_processes", lambda device, processes=processes: processes)
        predict.predict(run, open_archive(archive), ["2014", "2016"])
        written.append([(run.path / f"predictions/{split}.tsv").read_text() for split in ("2014", "2016")])
    assert written[0] == written[1] and all(len(text.splitlines()) > 3 for text in written[0])


@pytest.mark.parametrize(("cores", "gib", "processes"), [(16, 139, 8), (4, 139, 4), (16, 23, 2), (16, 3, 1)])
def test_as_many_processes_read_as_have_cores_and_free_memory(
    cores: int, gib: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmerbench.benchmarks.environment.own_cores", lambda: cores)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (gib << 30, 139 << 30))
    assert predict.search_processes(torch.device("cuda")) == processes
    assert predict.search_processes(torch.device("cpu")) == 1


def test_a_process_that_is_killed_ends_the_reading(tmp_path, monkeypatch) -> None:
    """For want of memory, say: what it was to read was waited for, for ever."""
    archive = tiny_archive(tmp_path / "data")
    run = untrained_run(tmp_path / "run", tiny_config(archive, {"training": {"batching": {"order": "shape"}}}))
    monkeypatch.setattr(predict, "get_context", {"spawn": forked()}.__getitem__)
    monkeypatch.setattr(predict, "search_processes", lambda device: 2)
    monkeypatch.setattr(predict, "_read_part", is_killed)
    with pytest.raises(Lost, match="a process that reads was lost; run the same command again to go on"):
        predict.predict(run, open_archive(archive), ["2014"])
