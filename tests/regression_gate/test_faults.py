"""One fault in each mechanism that the published numbers rest on: the regression gate must see every one.

A fault replaces a piece of a function's source. `make faults` plants them one by one, measures the part of the fixed
job that is to see it, and writes results/faults.md. As this takes minutes, `make test` only checks that every fault can
still be planted: whoever changes these lines plants the fault in the new ones.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

import pytest

from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.synthetic import embedded
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.regression_gate import baseline, fixed_job
from hmerbench.benchmarks.regression_gate.handwriting import handwriting
from tests.helpers.paths import ROOT


class Fault(NamedTuple):
    """In the only function of `module` that contains `before`, `after` takes its place."""

    mechanism: str
    part: str
    module: str
    before: str
    after: str


FAULTS = [
    Fault("affine augmentation", "batches", "hmerbench.benchmarks.data.augmentation",
          "augmentation is None or augmentation.only_scale", "True"),
    Fault("stroke width, elastic displacement", "batches", "hmerbench.benchmarks.data.augmentation",
          "self.effects(augmentation, draw)", "0, None"),
    Fault("curriculum", "batches", "hmerbench.benchmarks.data.batching",
          "(epoch + 1) / (self.batching.curriculum + 1)", "1.0"),
    Fault("another distortion every epoch", "batches", "hmerbench.benchmarks.data.batching",
          "(self.config.seed, epoch, index))", "(self.config.seed, 1, index))"),
    Fault("share of substituted symbols", "handwriting", "hmerbench.benchmarks.data.substitution",
          "chance < self.share", "chance < self.share / 2"),
    Fault("another substitution every epoch", "handwriting", "hmerbench.benchmarks.data.batching",
          "(self.config.seed, epoch, index, 1)", "(self.config.seed, index, 1)"),
    Fault("width of rendered strokes", "handwriting", "hmerbench.benchmarks.data.ink",
          "cv2.dilate(image, np.ones((3, 3), np.uint8))", "image"),
    Fault("choice of sub-expressions", "handwriting", "hmerbench.benchmarks.data.sub_expressions",
          "p=lengths / lengths.sum()", "p=None"),
    Fault("exchange of parts in their role", "handwriting", "hmerbench.benchmarks.data.exchange",
          "donors[line.role].append", 'donors["superscript"].append'),
    Fault("size of exchanged parts", "handwriting", "hmerbench.benchmarks.data.exchange",
          "_size(old) / _size(new.values())", "1.0"),
    Fault("generated expressions take turns", "handwriting", "hmerbench.benchmarks.data.samples",
          "epoch % self.turns == self.number", "True"),
    Fault("no cut-outs of held-out formulas", "handwriting", "hmerbench.benchmarks.training.training_data",
          "if sample.tokens not in held", ""),
    Fault("held-out formulas do not occur in training", "handwriting", "hmerbench.benchmarks.data.samples",
          "if sample.tokens not in formulas", ""),
    Fault("warmup of the learning rate", "muon steps", "hmerbench.benchmarks.training.optimizer",
          "progress < schedule.warmup", "False"),
    Fault("cosine decay", "muon steps", "hmerbench.benchmarks.training.optimizer",
          "math.cos(math.pi * progress)", "1 - 2 * progress"),
    Fault("decay of averaged weights", "muon steps", "hmerbench.benchmarks.training.optimizer",
          "min(decay, ", "min(0.9 * decay, "),
    Fault("recalibrated statistics", "muon steps", "hmerbench.benchmarks.training.learner",
          "if batches is not None:", "if False:"),
    Fault("statistics fixed at the end", "fixed steps", "hmerbench.benchmarks.training.learner",
          "norm.train(not fixed)", "norm.train()"),
    Fault("reading with the fixed statistics", "fixed steps", "hmerbench.benchmarks.training.trainer",
          "if training.recalibrate and not fixed else", "if training.recalibrate else"),
    Fault("label smoothing", "muon steps", "hmerbench.benchmarks.training.learner",
          "training.label_smoothing)", "0.9 * training.label_smoothing)"),
    Fault("Muon's momentum", "muon steps", "hmerbench.benchmarks.training.optimizer",
          "p.grad.lerp(average, momentum)", "average"),
    Fault("Muon on queries, keys and values apart", "muon steps", "hmerbench.benchmarks.training.optimizer",
          "3 if packed else 1", "1"),
    Fault("no weight decay of norms and biases", "muon steps", "hmerbench.benchmarks.training.optimizer",
          '"weight_decay": 0.0', '"weight_decay": settings.weight_decay'),
    Fault("gradient clipping", "muon steps", "hmerbench.benchmarks.training.learner",
          "parameters(), training.optimizer.clip)", "parameters(), 2 * training.optimizer.clip)"),
    Fault("dropout keeps the mean", "muon steps", "hmerbench.models.layers",
          ".mul_(1 / (1 - self.p))", ""),
    Fault("mean gradient of micro-batches", "sgd steps", "hmerbench.benchmarks.training.learner",
          "loss / self.share", "loss"),
    Fault("statistics of the first micro-batch alone", "sgd steps", "hmerbench.benchmarks.training.learner",
          "momentum(self.norms, 0.0)", "nullcontext()"),
    Fault("dropout in the encoder", "sgd steps", "hmerbench.models.layers",
          "int(self.p * 256 +", "int(self.p * 250 +"),
    Fault("coverage excludes the current step", "networks", "hmerbench.models.coverage",
          ".tril(-1)", ".tril()"),
    Fault("normalization in the refinement module", "networks", "hmerbench.models.coverage",
          "self.post_norm(float32(refinement_MH.t().contiguous()), valid_BhTw.flatten())",
          "float32(refinement_MH.t().contiguous())"),
    Fault("search with all networks", "networks", "hmerbench.models.inference.joint_search",
          "in self.networks for", "in self.networks[:1] for"),
    Fault("right-to-left targets", "networks", "hmerbench.models.decoder",
          "[EOS, *label[::-1]]", "[EOS, *label]"),
    Fault("length penalty alpha", "searches", "hmerbench.benchmarks.config",
          "self.max_len, self.alpha", "self.max_len, 0.9 * self.alpha"),
    Fault("search at all sizes", "searches", "hmerbench.benchmarks.recognition.predict",
          "(batch.images, batch.mask), *batch.other_sizes]", "(batch.images, batch.mask)]"),
    Fault("mean over the sizes", "searches", "hmerbench.models.inference.beam_search",
          ".mean(0)", ".amax(0)"),
    Fault("rescoring in the other direction", "searches", "hmerbench.models.inference.joint_search",
          "logp_RT.sum(1) /", "0.9 * logp_RT.sum(1) /"),
    Fault("coverage by all steps of the search", "searches", "hmerbench.models.inference.incremental",
          "coverage_GMCL += increment", "coverage_GMCL[:] = increment"),
    Fault("convertible predictions", "searches", "hmerbench.benchmarks.recognition.predict",
          "if config.search.convertible else ()", "if False else ()"),
    Fault("relations of symLG", "scores", "hmerbench.evaluation.symlg.builder",
          "member.first, relation)", 'member.first, {"Sub": "Sup"}.get(relation, relation))'),
    Fault("LgEval's errors", "scores", "hmerbench.evaluation.lgeval.metrics",
          '"D_B": d_c + d_l', '"D_B": max(d_c, d_l)'),
]  # fmt: skip


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions, methods and properties that a module defines, without their decorators."""
    for place in (module, *(kind for _, kind in inspect.getmembers(module, inspect.isclass))):
        for value in vars(place).values():
            value = value.fget if isinstance(value, property) else inspect.unwrap(getattr(value, "__func__", value))
            if isinstance(value, FunctionType) and value.__code__.co_filename == module.__file__:
                yield value


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    found = [f for f in set(functions(import_module(fault.module))) if fault.before in inspect.getsource(f)]
    assert len(found) == 1, f"{fault.module}: {len(found)} functions with `{fault.before}`"
    function, scope = found[0], dict[str, FunctionType]()
    source = textwrap.dedent(inspect.getsource(function))
    source = source[source.index("def ") :]  # without its decorators
    assert source.count(fault.before) == 1
    exec(compile(source.replace(fault.before, fault.after), fault.module, "exec"), function.__globals__, scope)
    code = function.__code__
    function.__code__ = scope[function.__name__].__code__  # so that whoever has imported it gets the fault
    try:
        yield
    finally:
        function.__code__ = code


class Job:
    """The parts of the fixed job, small, and what each is without a fault."""

    def __init__(self, folder: Path) -> None:
        typeset = open_archive(embedded(folder / "typeset.zip", train=64, test=100))
        written = handwriting(folder / "written", 48)
        self.parts: dict[str, Callable[[], fixed_job.Values]] = {
            "batches": lambda: fixed_job.batch_values(typeset),
            "handwriting": lambda: fixed_job.ink_values(written),
            "muon steps": lambda: fixed_job.first_steps(written, "medium"),
            "fixed steps": lambda: fixed_job.fixed_statistics_steps(typeset),
            "sgd steps": lambda: fixed_job.first_steps(typeset, "paper"),
            "networks": fixed_job.network_values,
            "searches": lambda: fixed_job.search_values(written),
            "scores": lambda: fixed_job.scores(typeset, None, folder),
        }
        self.right = cache(lambda part: self.parts[part]())
        self.rows = dict[Fault, str]()

    def differing(self, part: str) -> list[str]:
        """The items of a part that differ now."""
        now = self.parts[part]()
        return [item for item, value in self.right(part).items() if baseline.numeric_row(item, value, now[item]).fails]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    job = Job(tmp_path_factory.mktemp("job"))
    yield job
    if len(job.rows) == len(FAULTS):
        head = ["| mechanism | part of the fixed job | items that differ |", "|:---|:---|:---|"]
        rows = [f"| {fault.mechanism} | {fault.part} | {seen} |" for fault, seen in job.rows.items()]
        write_atomically(ROOT / "results/faults.md", "\n".join([*head, *rows]) + "\n")


def test_every_fault_can_be_planted() -> None:
    for fault in FAULTS:
        with planted(fault):
            pass


@pytest.mark.faults
@pytest.mark.parametrize("part", dict.fromkeys(fault.part for fault in FAULTS))
def test_nothing_differs_without_a_fault(job: Job, part: str) -> None:
    assert job.differing(part) == []


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.mechanism)
def test_the_gate_sees(job: Job, fault: Fault) -> None:
    count = len(job.right(fault.part))
    with planted(fault):
        items = job.differing(fault.part)
    assert items
    kinds = dict.fromkeys(item.rpartition(": ")[2] for item in items)
    job.rows[fault] = f"{len(items)} of {count}: {', '.join(kinds)}"
