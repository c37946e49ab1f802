"""A trained network as ONNX: `encoder.onnx`, `step.onnx`, `model.json` with all that a search needs, and `reader.py`,
which reads with them without PyTorch; for a model hub with its words and a model card, too. Nothing is uploaded.

Weights are stored as float32, as float16, or as int8 with a scale per row; they are made float32 again when a session
opens, so that smaller files compute at the same speed. A card's front matter has the results as `model-index`
(huggingface_hub's EvalResult): ExpRate of every test set with n, interval and signature.
"""

import copy
import inspect
import io
import json
import logging
import re
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.files import write_atomically
from hmerbench.benchmarks.recognition import onnx_reader
from hmerbench.benchmarks.recognition.confidence import DOUBTFUL, FAR
from hmerbench.benchmarks.recognition.recognizer import Recognizer, calibration
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.metrics import TABULATED
from hmerbench.models.network import Network
from hmerbench.models.stepwise import Stepwise, stepwise

WEIGHTS = ("float32", "float16", "int8")
FILES = ("encoder.onnx", "step.onnx", "model.json", "reader.py")
LEAST = 256  # numbers of a tensor that is worth storing in another type
OPSET = 20
DYNAMIC = torch.export.Dim.DYNAMIC


class _Program(nn.Module):
    """One of a network's two programs, by the name of its method, as a module, which alone can be exported."""

    def __init__(self, network: Stepwise, name: str) -> None:
        super().__init__()
        self.network, self.name = network, name

    def forward(self, first: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        return getattr(self.network, self.name)(first, *given)


def write_onnx(model: Network, config: Config, folder: Path, weights: str = "float32") -> None:
    """Write FILES to a folder. Raises UserError for a network without a `stepwise`, and for a search or settings
    that the reader does not know."""
    import onnx  # noqa: F401
    import onnxscript  # noqa: F401  (torch's exporter needs it)

    if weights not in WEIGHTS:
        raise UserError(f"weights '{weights[:40]}': choose {', '.join(WEIGHTS[:-1])} or {WEIGHTS[-1]}")
    if config.search.language.weights or config.search.together.runs:
        raise UserError(
            f"{config.recipe}: it reads with a language model or other networks; export a run that reads alone"
        )
    try:
        network = stepwise(copy.deepcopy(model).cpu().float().eval())  # it may be read with, on a GPU
    except ValueError as error:
        raise UserError(f"cannot be exported: {error}") from None
    if getattr(resolve_name(config.model.searcher), "rules", None) not in onnx_reader.SEARCHES:
        known = " or ".join(onnx_reader.SEARCHES)
        raise UserError(f"cannot be exported: {config.model.searcher} must name its `rules`, which are {known}")
    encoder, step = (smaller(program, weights) for program in programs(network))
    model_json, reader = json.dumps(described(network, config), indent=1), bundled(onnx_reader.__name__, set())
    for name, content in zip(FILES, (encoder, step, model_json, reader), strict=True):
        write_atomically(folder / name, content)


def bundled(module: str, already: set[str]) -> str:
    """The source of a module in which those of the suite that it imports take the place of the imports, each once."""
    already.add(module)

    def imported(line: re.Match[str]) -> str:
        return "" if line[1] in already else bundled(line[1], already)

    source = inspect.getsource(import_module(module))
    return re.sub(r"^from (hmerbench\.\S+) import (\([^)]*\)|.+)$", imported, source, flags=re.MULTILINE)


def described(network: Stepwise, config: Config) -> dict[str, Any]:
    """What the reader needs to know besides the two programs."""
    search, batching = config.search, config.training.batching
    return {
        "format": onnx_reader.FORMAT,
        "name": f"{config.recipe}, {config.preset}, seed {config.seed}",
        "words": network.vocabulary.words,
        **{key: getattr(network, key) for key in ("offset", "stride", "memory", "state", "cache", "starts", "ends")},
        "scale": config.data.scale,
        "scales": search.scales,
        "max_area": config.data.max_area,
        "grid": batching.order == "shape",
        "coarse": batching.coarse,
        "confidence": {**asdict(calibration()), "far": FAR, "doubtful": DOUBTFUL},
        "search": {
            "rules": resolve_name(config.model.searcher).rules,
            "directions": [name for name in network.starts if search.direction in ("both", name)],
            **{key: getattr(search, key) for key in ("beam_size", "max_len", "alpha", "convertible")},
        },
    }


@torch.no_grad()
def programs(network: Stepwise) -> tuple[Any, Any]:
    """Encoder and step as ONNX models whose images may be of any size, and words of any number."""
    image_11HW, size_2 = torch.rand(1, 1, 64, 96), torch.tensor([60, 90])
    encoded, other = (
        network.encode(*given) for given in ((image_11HW, size_2), (torch.rand(1, 1, 96, 160), 3 * size_2 // 2))
    )
    encoded = [each.contiguous() for each in encoded]  # how a view lies in memory cannot be exported
    memory, first = encoded[: len(network.memory)], encoded[len(network.memory) :]
    names = [*network.memory, *(name for name, shape in network.state.items() if shape is None)]
    moves = ({2: DYNAMIC, 3: DYNAMIC}, (None,))
    encoder = _exported(_Program(network, "encode"), (image_11HW, size_2), moves, ["image", "size"], names)
    N, X, P, (h, w) = 2, 3, 4, (-(-side // network.stride) for side in size_2.tolist())
    # what is given, and its dimensions that differ between images and steps
    given: list[tuple[Tensor, set[int]]] = [(torch.randint(3, 9, (X,)), {0}), (torch.arange(X) % N, {0})]
    if network.cache:
        given += [(torch.full((N,), P), {0}), (torch.ones(N, P), {0, 1}), (torch.zeros(N, X), {0, 1})]
    for x, y in zip(memory, other, strict=False):
        given.append((x, {i for i, side in enumerate(x.shape) if side != y.shape[i]}))
    sizes: dict[int | str, int] = {"h": h, "w": w}
    for shape in network.state.values():
        if shape is None:
            given.append((first.pop(0).repeat_interleave(N, 0), {0}))
        else:
            sides = [int(sizes.get(side, side)) for side in shape]
            given.append((torch.rand(N, *sides), {0, *(i for i, side in enumerate(shape, start=1) if side in sizes)}))
    for shape in network.cache.values():
        given.append((torch.rand([int(side) or P for side in shape]), {shape.index(0)}))
    inputs, moving = zip(*given, strict=True)
    moves = [dict.fromkeys(sorted(dimensions), DYNAMIC) for dimensions in moving]
    carried = [*network.state, *network.cache]
    step = _exported(
        _Program(network, "step"),
        inputs,
        (moves[0], tuple(moves[1:])),
        ["words", *network.before, *network.memory, *carried],
        ["logp", "looked", *(f"next_{name}" for name in carried)],
    )
    return encoder, step


def _exported(module: nn.Module, inputs: tuple, moves: Any, names: Sequence[str], outputs: Sequence[str]) -> Any:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
        program = torch.onnx.export(
            module.eval(), inputs, dynamo=True, dynamic_shapes=moves, input_names=[*names], output_names=[*outputs],
            opset_version=OPSET, verbose=False,
        )  # fmt: skip
    assert program is not None
    model = program.model_proto
    graph = model.graph
    for part in (graph, *graph.node, *graph.value_info, *graph.initializer, *graph.input, *graph.output):
        part.ClearField("metadata_props")  # where in this machine's files each operation comes from
    return model


def smaller(model: Any, weights: str) -> bytes:
    """The file of an ONNX model whose weights are stored in another type."""
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for tensor in [*model.graph.initializer] if weights != "float32" else ():  # a list, as scales are added to it
        values = numpy_helper.to_array(tensor)
        if tensor.data_type != TensorProto.FLOAT or values.size < LEAST:
            continue
        name, stored = tensor.name, f"{tensor.name}_{weights}"
        if weights == "float16" or values.ndim < 2:
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), stored))
            casts.append(helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT))
            continue
        bytes_, scale = as_bytes(values)
        tensor.CopyFrom(numpy_helper.from_array(bytes_, stored))
        model.graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
        casts += [
            helper.make_node("Cast", [stored], [f"{name}_whole"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}_whole", f"{name}_scale"], [name]),
        ]
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model.SerializeToString()


def as_bytes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights as int8 and the scale of each row or each column, whichever loses less."""
    found = list[tuple[float, np.ndarray, np.ndarray]]()
    for axis in (0, values.ndim - 1):
        others = tuple(i for i in range(values.ndim) if i != axis)
        scale = np.maximum(np.abs(values).max(others, keepdims=True) / 127, 1e-30).astype(np.float32)
        whole = np.rint(values / scale).astype(np.int8)
        found.append((float(((whole * scale - values) ** 2).sum()), whole, scale))
    return min(found, key=lambda each: each[0])[1:]


# ------------------------------------------------------------------------------------------- a folder for a model hub


LICENSE = "cc-by-nc-sa-3.0"  # CROHME's, on which the committed networks were trained


def write_hub(recognizer: Recognizer, run: RunFolder, folder: Path, weights: str) -> None:
    """Write the files to a folder. Raises UserError for a run without scores, and as `write_onnx`."""
    if not run.scores:
        raise UserError(f"{run.path}: this run has no scores, which a model card tells; score it first")
    readme = card(recognizer, run, weights)  # before the long export, as it may lack a package
    write_onnx(recognizer.model, recognizer.config, folder, weights)
    write_atomically(folder / "words.txt", "\n".join(recognizer.model.vocabulary.words) + "\n")
    write_atomically(folder / "README.md", readme)


def card(recognizer: Recognizer, run: RunFolder, weights: str) -> str:
    from hmerbench.benchmarks.report.documents import from_template, markdown  # need pandas, and an export does not

    config = recognizer.config
    title = f"{config.recipe}-{config.preset}-seed{config.seed}"
    license_ = LICENSE if run.data == "crohme" or config.start.digest else "other"  # what it started from is CROHME's
    front = {
        "license": license_,
        "library_name": "onnx",
        "pipeline_tag": "image-to-text",
        "tags": ["handwritten-mathematical-expression-recognition", "latex", run.data, config.recipe],
        "model-index": [{"name": title, "results": model_index(run)}],
    }
    table = [
        {"test set": set_name(run, split), "n": f"{score.n:,}"}
        | {metric.heading: f"{score.printed(metric)} %" for metric in TABULATED}
        | {"95 % interval over images": f"{score.ci95[0]:.1f}–{score.ci95[1]:.1f}"}
        for split, score in run.scores.items()
    ]
    return from_template(
        "hub.md",
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=200),
        title=title,
        recipe=config.recipe,
        preset=config.preset,
        seed=config.seed,
        start=config.start.clause,
        external=run.external,
        parameters=sum(parameter.numel() for parameter in recognizer.model.parameters()) / 1e6,
        weights=weights,
        scores=markdown(table),
        signatures="\n".join(f"    {score}" for score in run.scores.values()),
        words=len(recognizer.model.vocabulary.words) - 3,
        license=license_,
        data=run.data,
    )


def set_name(run: RunFolder, split: str) -> str:
    return f"{'CROHME' if run.read_data == 'crohme' else run.read_data} {split}"


def model_index(run: RunFolder) -> list[dict[str, Any]]:
    """Results in the form of a model card's front matter."""
    return [
        {
            "task": {"type": "image-to-text", "name": "handwritten mathematical expression recognition"},
            "dataset": {"type": run.read_data, "name": set_name(run, split), "split": split},
            "metrics": [
                {
                    "type": "exprate",
                    "name": "ExpRate",
                    "value": round(score.exprate, 2),
                    "args": {"n": score.n, "ci95": list(score.ci95), "signature": score.signature},
                }
            ],
        }
        for split, score in run.scores.items()
    ]
