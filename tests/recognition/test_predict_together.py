"""Networks that read together with a run's own (`search.together`)."""

from pathlib import Path

import pytest
import torch

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.recognition.predict import others, recognize
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.training.trainer import train
from hmerbench.models.network import Network
from hmerbench.models.vocab import Vocabulary
from tests.helpers.tiny import tiny_archive, tiny_config, untrained_run

CPU = torch.device("cpu")


def together(archive: Path, *runs: RunFolder) -> Config:
    return tiny_config(archive, {"search": {"together": {"runs": [str(run.path) for run in runs]}}})


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tiny_archive(tmp_path, 2, 3)


def read(model: Network, config: Config, samples: list[Sample]) -> dict[str, list[float]]:
    return {id_: [h.score for h in found] for id_, (_, found) in recognize(model, config, samples, CPU, "2014").items()}


def test_all_networks_are_heard(archive: Path) -> None:
    """In any order, and whatever their recipe; what is read is not what one of them reads alone."""
    torch.manual_seed(1)
    first = untrained_run(archive / "first", tiny_config(archive))
    second = untrained_run(archive / "second", tiny_config(archive, recipe="bttr-baseline"))
    samples = open_archive(archive).samples("2014")
    one, two = (others(together(archive, run), CPU, Vocabulary())[0] for run in (first, second))
    both = read(one, together(archive, second), samples)
    assert both == {id_: pytest.approx(scores) for id_, scores in read(two, together(archive, first), samples).items()}
    for alone in (one, two):
        assert both != read(alone, tiny_config(archive), samples)
        assert read(alone, tiny_config(archive), samples) != read(alone, together(archive, second, first), samples)


def test_what_does_not_fit_is_refused(archive: Path) -> None:
    run = untrained_run(archive / "run", tiny_config(archive))
    made = together(archive, run)
    run.write("best.safetensors", run.weights_file.read_bytes() + b"more")
    with pytest.raises(UserError, match="this run was made with other weights; restore them"):
        others(made, CPU, Vocabulary())
    run.weights_file.unlink()
    with pytest.raises(UserError, match="this run reads together with these weights; restore them"):
        others(made, CPU, Vocabulary())
    mine = [*Vocabulary().words, "\\zeta"]
    small = tiny_config(archive, {"data": {"scale": 0.5}})
    for config, words, message in (
        (tiny_config(archive), mine, "has other words than this run's; give runs trained on the same captions"),
        (small, (), "reads images at scale 0.5, this run at 1; give runs of the same scale"),
        (resolve("bttr-uni", "smoke", 7), (), "bttr-uni does not read both; give another run"),
        (resolve("densewap", "smoke", 7), (), "densewap reads alone; give runs of networks of CoMER's kind"),
    ):
        other = untrained_run(archive / config.recipe, config, words=words)
        with pytest.raises(UserError, match=message):
            others(together(archive, other), CPU, Vocabulary())
    with pytest.raises(UserError, match=message):  # before any epoch
        train(RunFolder(archive / "late", together(archive, other)), open_archive(archive))
    assert not (archive / "late/config.yaml").exists()
