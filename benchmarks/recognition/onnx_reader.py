"""Reads handwritten expressions with an exported network; needs numpy and onnxruntime alone.

    from reader import Reader
    print(Reader("folder")(ink)[0].latex)

`ink` is (H, W) uint8, white strokes on black as CROHME renders them: 3 px wide, a margin of 12 px, symbols about 37 px
high. On the command line, `python reader.py image.png` takes such a picture (and needs Pillow).

Hypotheses are found and ranked by the network's own search: the joint search of CoMER and BTTR, or DenseWAP's; at
several sizes of the image, a word's log-probability is its mean over them. In the suite, this file imports what PyTorch
reads with, too; in `reader.py`, that stands in place of its imports.

Names carry shapes: H x W pixels, h x w feature cells, G directions, M beams, N hypotheses, T their words with the
start, X words that are read at once, P words of the cache, K sizes, C candidates, V classes.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from hmerbench.benchmarks.data.sizes import padded, rounded, shrunk, within_limits
from hmerbench.benchmarks.recognition.complete_latex import is_complete
from hmerbench.benchmarks.recognition.confidence import Calibration, Reading, readings
from hmerbench.models.inference.beam_search import (
    NEVER,
    Array,
    BeamSearch,
    BTTRBeamSearch,
    NarrowingBeamSearch,
    best_first,
    chosen,
)
from hmerbench.models.inference.hypothesis import Hypothesis

FORMAT = "hmerbench-onnx-3"
SEARCHES = {"joint": BeamSearch, "bttr": BTTRBeamSearch, "densewap": NarrowingBeamSearch}
PAD = 0
MOST_CELLS = 2**15  # words that are read at once, times feature cells
SLOW = ["SkipLayerNormFusion"]  # takes several times as long as what it fuses
Named = dict[str, Array]


class Reader:
    """An exported network, read from its folder. Raises ValueError for a folder that holds none."""

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        folder, options = Path(folder), onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        options.enable_mem_pattern = False  # no two calls have the same shapes
        try:
            self.model: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
            if self.model["format"] != FORMAT:
                raise ValueError(f"format {self.model['format']}")
            self.encoder, self.step = (
                onnxruntime.InferenceSession(
                    str(folder / f"{name}.onnx"), options, ["CPUExecutionProvider"], disabled_optimizers=SLOW
                )
                for name in ("encoder", "step")
            )
        except Exception as error:  # onnxruntime has a class of its own for each fault
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{folder}: not a folder of an exported network ({reason}); export it again") from None

    def __call__(self, ink: Array) -> list[Reading]:
        """The distinct readings, best first; none if nothing ends within the longest length of the search.

        Raises ValueError for anything but a (H, W) uint8 image with ink.
        """
        if ink.ndim != 2 or ink.dtype != np.uint8 or not ink.any():
            raise ValueError(f"give a (H, W) uint8 image of white ink on black, not {ink.dtype} of shape {ink.shape}")
        if ink.size > self.model["max_area"]:
            raise ValueError(f"{ink.shape[1]} x {ink.shape[0]} px: larger than {self.model['max_area']:,} px")
        found, options = search(Decoding(self, views(ink, self.model)), self.model), self.model["search"]
        fitted = Calibration(*(self.model["confidence"][name] for name in ("intercept", "weights")))
        best = readings(found, self.model["words"], options["alpha"], fitted)
        if options["convertible"]:  # the first one that is complete LaTeX comes to the front
            first = next((reading for reading in best if is_complete(reading.tokens)), None)
            best.sort(key=lambda reading: reading is not first)
        return best


# ------------------------------------------------------------------------------------------------------- images


def views(ink: Array, model: dict[str, Any]) -> Iterator[tuple[Array, tuple[int, int]]]:
    """The image at every scale, zero-padded to the grid of shapes of the network's training; and its size in it."""
    top, grid = max(model["scales"]), model["grid"]
    height, width = at_scale(ink, model["scale"], top).shape
    shape = padded(height, width, model["coarse"])
    for scale in model["scales"]:
        image = at_scale(ink, model["scale"], scale)
        larger = shape if scale == top else shrunk(shape, scale / top)
        padded_image = np.zeros(larger if grid else image.shape, np.uint8)
        padded_image[: image.shape[0], : image.shape[1]] = image
        yield padded_image, image.shape


def at_scale(ink: Array, base: float, scale: float) -> Array:
    """The image as the network reads it at a scale, within the limits of sides."""
    factor = base * scale * within_limits(*ink.shape)
    if factor == 1:
        return ink
    size = [rounded(side * factor) for side in ink.shape]
    inverse = [1 / factor if base * scale == 1 else side / new for side, new in zip(ink.shape, size, strict=True)]
    weights = area_weights if factor < 1 and base * scale != 1 else linear_weights
    down, across = (weights(*sides) for sides in zip(ink.shape, size, inverse, strict=True))
    return np.rint(down @ ink.astype(np.float32) @ across.T).clip(0, 255).astype(np.uint8)


def area_weights(old: int, new: int, step: float) -> Array:
    """[new, old]: each new pixel is the mean over the `step` old ones that it covers."""
    starts = np.arange(new)[:, None] * step
    overlap = np.minimum(starts + step, np.arange(old) + 1) - np.maximum(starts, np.arange(old))
    return (overlap.clip(0) / np.minimum(step, old - starts)).astype(np.float32)


def linear_weights(old: int, new: int, step: float) -> Array:
    """[new, old]: each new pixel is interpolated between two old ones."""
    centers = ((np.arange(new) + 0.5) * step - 0.5).clip(0, old - 1)[:, None]
    return (1 - np.abs(centers - np.arange(old))).clip(0).astype(np.float32)


# ------------------------------------------------------------------------------------------------------ network


class Decoding:
    """One image at every scale, and N hypotheses of it, as a `beam_search.Decoder`."""

    full = False

    def __init__(self, reader: Reader, images: Iterator[tuple[Array, tuple[int, int]]]) -> None:
        encoder: Any = reader.encoder
        self.step: Any = reader.step
        self.model, self.cells = reader.model, 0
        self.known = dict[tuple[int, ...], Array]()  # [K, V] at K scales, by the words before
        self.memory, self.first = list[Named](), list[Named]()
        self.inputs = [given.name for given in self.step.get_inputs()]
        encoded = [output.name for output in encoder.get_outputs()]
        for image, size in images:
            feeds = {"image": image[None, None].astype(np.float32) / 255, "size": np.array(size, np.int64)}
            values = dict(zip(encoded, encoder.run(None, feeds), strict=True))
            self.memory.append({name: values[name] for name in self.model["memory"]})
            h, w = (-(-side // self.model["stride"]) for side in size)
            self.cells = max(self.cells, h * w)
            shapes = self.model["state"].items()
            first = {name: values[name] if shape is None else zeros(shape, h, w) for name, shape in shapes}
            self.first.append(
                first | {name: np.zeros(shape, np.float32) for name, shape in self.model["cache"].items()}
            )

    def begin(self, groups: int = 1, beams: int = 1) -> None:
        """Start with one hypothesis without words, which every beam continues."""
        self.places_N, self.visible_NP = np.zeros(1, np.int64), np.zeros((1, 0), np.float32)
        self.state = [{**first} for first in self.first]
        self.words_GMT, self.rows_GM = np.zeros((groups, beams, 0), np.int64), np.zeros((groups, beams), np.int64)

    def best(self, tokens_GM: Array, sums_GM: Array, count: int) -> tuple[Array, Array, Array]:
        """As `beam_search.Decoder`. What is the same of all beams that continue one hypothesis is done once."""
        live_GM = sums_GM != NEVER
        self.words_GMT = np.concatenate((self.words_GMT, tokens_GM[..., None]), axis=2)
        words_XT = self.words_GMT[live_GM]
        parents_N, rows_X = np.unique(self.rows_GM[live_GM], return_inverse=True)
        self.keep(parents_N)
        logp_XKV = self.read(words_XT[:, -1], rows_X, np.zeros((len(parents_N), len(rows_X)), np.float32))
        self.known.update(zip(map(tuple, words_XT.tolist()), logp_XKV, strict=True))
        self.rows_GM[live_GM] = np.arange(len(rows_X))
        (G, M), V = live_GM.shape, logp_XKV.shape[2]
        sums_GMV = np.full((G, M, V), NEVER, np.float32)
        sums_GMV[live_GM] = sums_GM[live_GM][:, None] + logp_XKV.mean(1)
        sums_GC = sums_GMV.reshape(G, M * V)
        index_GC = np.argpartition(-sums_GC, count - 1, axis=1)[:, :count]
        index_GC = chosen(index_GC, best_first(chosen(sums_GC, index_GC)))
        return chosen(sums_GC, index_GC), index_GC // V, index_GC % V

    def reorder(self, parents_GM: Array) -> None:
        """Let beam m of each group continue what was beam parents[m]."""
        self.words_GMT, self.rows_GM = chosen(self.words_GMT, parents_GM), chosen(self.rows_GM, parents_GM)

    def compact(self, live_G: Array) -> None:
        """Keep only the groups with the given indices."""
        self.words_GMT, self.rows_GM = self.words_GMT[live_G], self.rows_GM[live_G]

    def read(self, words_X: Array, rows_X: Array, earlier_NX: Array) -> Array:
        """Log-probabilities [X, K, V], at K scales, of what follows each word.

        Word x continues hypothesis rows[x] and those of these words that are part of that, too, as 0 and 1. Then there
        are X hypotheses, which end with these words.
        """
        places_N, logps = self.places_N + earlier_NX.sum(1, dtype=int), list[Array]()
        given = {
            "words": words_X, "rows": rows_X, "places": places_N, "visible": self.visible_NP, "earlier": earlier_NX
        }  # fmt: skip
        for memory, state in zip(self.memory, self.state, strict=True):
            every, outputs = {**given, **memory, **state}, ["logp", *(f"next_{name}" for name in state)]
            logp, *after = self.step.run(outputs, {name: every[name] for name in self.inputs})
            logps.append(logp)
            state.update(zip(state, after, strict=True))
        self.places_N = places_N[rows_X] + 1
        new_XX = (earlier_NX[rows_X] + np.eye(len(words_X), dtype=np.float32)) * (words_X != PAD)
        self.visible_NP = np.concatenate((self.visible_NP[rows_X], new_XX), axis=1, dtype=np.float32)
        return np.stack(logps, axis=1)

    def keep(self, rows_N: Array) -> None:
        """Go on with hypotheses rows[0], rows[1], …; one may go on more than once."""
        self.places_N, visible_NP = self.places_N[rows_N], self.visible_NP[rows_N]
        used_P = np.flatnonzero(visible_NP.any(0))
        if 3 * len(used_P) > 2 * visible_NP.shape[1]:  # to forget few words would cost more than to keep them
            used_P = slice(None)
        self.visible_NP = visible_NP[:, used_P]
        for state in self.state:
            for name, x in state.items():
                state[name] = x[:, :, used_P] if name in self.model["cache"] else x.take(rows_N, 0)


def zeros(shape: Sequence[int | str], h: int, w: int) -> Array:
    """One hypothesis' state before its first word."""
    return np.zeros([1, *(int({"h": h, "w": w}.get(str(side), side)) for side in shape)], np.float32)


# ------------------------------------------------------------------------------------------------------- search


def search(decoding: Decoding, model: dict[str, Any]) -> list[Hypothesis]:
    """The hypotheses of an image, best first. Those of two directions are rescored, each by the other one."""
    options, bttr = model["search"], model["search"]["rules"] == "bttr"
    M, alpha, directions = options["beam_size"], 0.0 if bttr else options["alpha"], options["directions"]
    start_G, end_G = (np.array([model[side][direction] for direction in directions]) for side in ("starts", "ends"))
    decoding.begin(len(directions), M)
    beam_search = SEARCHES[options["rules"]](
        decoding, start_G, end_G, beam_size=M, max_len=options["max_len"], alpha=alpha
    )
    columns = (column.tolist() for column in vars(beam_search.run()).values())
    found = [
        (directions[number // M], words[:length], score)
        for number, (words, length, score) in enumerate(zip(*columns, strict=True))
        if score != NEVER
    ]
    reverse, hypotheses = [(0.0, 0.0)] * len(found), list[Hypothesis]()
    if len(directions) == 2:
        reverse = rescored(
            decoding, [[model["ends"][side], *words[::-1], model["starts"][side]] for side, words, _ in found], alpha
        )
    for (direction, words, forward), (other, spread) in zip(found, reverse, strict=True):
        ids = tuple(word + model["offset"] for word in (words if direction == "l2r" else words[::-1]))
        hypothesis = Hypothesis(ids, forward + other, forward, other, direction, spread=spread)
        hypotheses.append(hypothesis.by_tokens(options["alpha"]) if bttr else hypothesis)
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def rescored(decoding: Decoding, sequences: Sequence[list[int]], alpha: float) -> list[tuple[float, float]]:
    """What the network gives every whole sequence, from its start to its end, and by how much the sizes of the image
    differ in it."""
    read_whole(decoding, sequences)
    steps = np.array([sum(word != PAD for word in words) - 1 for words in sequences])  # as the authors count them
    sums_KN = np.zeros((len(decoding.memory), len(sequences)))
    for number, words in enumerate(sequences):
        for t, word in enumerate(words[1:], 1):
            if word != PAD:
                sums_KN[:, number] += decoding.known[(*words[:t],)][:, word]
    return [*zip((sums_KN.mean(0) / steps**alpha).tolist(), sums_KN.std(0).tolist(), strict=True)]


def read_whole(decoding: Decoding, sequences: Sequence[list[int]]) -> None:
    """Let all log-probabilities of these sequences be known; several steps are read at once."""
    levels = list[dict[tuple[int, ...], None]]()  # prefixes by length
    for words in sequences:
        prefixes = [(*words[:length],) for length in range(1, len(words))]
        if not all(prefix in decoding.known for prefix in prefixes):
            levels += [{} for _ in range(len(prefixes) - len(levels))]
            for level, prefix in zip(levels, prefixes, strict=False):
                level[prefix] = None
    before: dict[tuple[int, ...], int] = {(): 0}
    decoding.begin()
    while levels:
        read, rows, earlier = dict[tuple[int, ...], int](), list[int](), list[list[int]]()
        while levels and (not read or (len(read) + len(levels[0])) * decoding.cells <= MOST_CELLS):
            for prefix in levels.pop(0):
                inside = read.get(prefix[:-1])
                rows.append(before[prefix[:-1]] if inside is None else rows[inside])
                earlier.append([] if inside is None else [*earlier[inside], inside])
                read[prefix] = len(read)
        X = len(read)
        earlier_XX = np.zeros((X, X), np.float32)
        for x, some in enumerate(earlier):
            earlier_XX[x, some] = 1
        decoding.keep(np.array(rows))
        logps = decoding.read(np.array([prefix[-1] for prefix in read]), np.arange(X), earlier_XX)
        decoding.known.update(zip(read, logps, strict=True))
        before = read


def main() -> None:
    """Read the pictures named on the command line with the network beside this file."""
    from PIL import Image

    if not sys.argv[1:]:
        sys.exit(f"usage: {sys.argv[0]} IMAGE ...: pictures that `hmerbench recognize --show-prepared` writes")
    reader, unread = Reader(Path(__file__).parent), 0
    for name in sys.argv[1:]:
        try:
            ink = np.asarray(Image.open(name).convert("L"))
            if ink.mean() > 127:
                raise ValueError("bright; this reads what `hmerbench recognize --show-prepared` writes: white on black")
            found = reader(ink)
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            unread += 1
        else:
            print(found[0].latex if found else "")
    sys.exit(unread > 0)


if __name__ == "__main__":
    main()
