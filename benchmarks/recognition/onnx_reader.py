"""Reads handwritten expressions with an exported network; needs numpy and onnxruntime alone.

    from reader import Reader
    print(Reader("folder")(ink)[0].latex)

`ink` is (H, W) uint8, white strokes on black as CROHME renders them: 3 px wide, a margin of 12 px, symbols about 37 px
high. On the command line, `python reader.py image.png` takes such a picture (and needs Pillow).

Hypotheses are found and ranked as the network's own search does it in PyTorch: the joint search of CoMER and BTTR, or
DenseWAP's; at several sizes of the image, a word's log-probability is its mean over them.

Names carry shapes: H x W pixels, h x w feature cells, N hypotheses, T their words with the start, M beams, X words that
are read at once, P words of the cache, V classes.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

FORMAT = "hmerbench-onnx-3"
NEVER = -math.inf
SPECIAL = ("<pad>", "<sos>", "<eos>")
PAD = 0
MOST_CELLS = 2**15  # words that are read at once, times feature cells
SLOW = ["SkipLayerNormFusion"]  # takes several times as long as what it fuses
LOW, HIGH, WIDE = 16, 256, 1024  # px: images are brought to 16..256 high and 16..1024 wide
Array = np.ndarray
Named = dict[str, Array]


@dataclass(frozen=True)
class Hypothesis:
    """A recognized expression; `score` ranks hypotheses: forward + reverse."""

    tokens: tuple[str, ...]  # in reading order
    score: float
    forward: float  # log-probability / length ** alpha in the direction of the search
    reverse: float  # the same in the opposite direction; 0 if only one direction is searched
    direction: str
    length: int  # by whose power alpha scores were divided
    spread: float = 0.0  # standard deviation of the reverse log-probability over the sizes of the image
    confidence: float = math.nan  # the share of readings with this number that are right

    @property
    def latex(self) -> str:
        """The tokens, separated by spaces."""
        return " ".join(self.tokens)


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

    def __call__(self, ink: Array) -> list[Hypothesis]:
        """The distinct hypotheses, best first; none if nothing ends within the longest length of the search.

        Raises ValueError for anything but a (H, W) uint8 image with ink.
        """
        if ink.ndim != 2 or ink.dtype != np.uint8 or not ink.any():
            raise ValueError(f"give a (H, W) uint8 image of white ink on black, not {ink.dtype} of shape {ink.shape}")
        if ink.size > self.model["max_area"]:
            raise ValueError(f"{ink.shape[1]} x {ink.shape[0]} px: larger than {self.model['max_area']:,} px")
        decoder = Decoder(self, views(ink, self.model))
        found = SEARCHES[self.model["search"]["rules"]](decoder, self.model)
        best = [*trusted(found, self.model)]
        if self.model["search"]["convertible"]:  # the first one that is complete LaTeX comes to the front
            first = next((h for h in best if is_complete(h.tokens)), None)
            best.sort(key=lambda h: h is not first)
        return best


# --------------------------------------------------------------------------------------------------- confidence


def trusted(hypotheses: Sequence[Hypothesis], model: dict[str, Any]) -> Iterator[Hypothesis]:
    """The first hypothesis of each distinct reading, with its confidence: a logistic regression on what the search
    tells of it, as `confidence.py` of the suite has it."""
    fitted, alpha, found = model["confidence"], model["search"]["alpha"], dict[tuple[str, ...], list[Hypothesis]]()
    for hypothesis in hypotheses:
        found.setdefault(hypothesis.tokens, []).append(hypothesis)
    single = all(hypothesis.reverse == 0 for hypothesis in hypotheses)
    logps = {
        tokens: (h.forward + h.reverse) * h.length**alpha / (2 if h.reverse else 1) for tokens, (h, *_) in found.items()
    }
    for tokens, (h, *again) in found.items():
        rival = max((value for other, value in logps.items() if other != tokens), default=NEVER)
        evidence = {
            "logp": logps[tokens],
            "steps": len(tokens) + 1,
            "margin": min(logps[tokens] - rival, fitted["far"]),
            "apart": 0 if single else abs(h.forward - h.reverse) * h.length**alpha,
            "spread": h.spread,
            "both": single or any(other.direction != h.direction for other in again),
        }
        odds = fitted["intercept"] + sum(weight * evidence[name] for name, weight in fitted["weights"].items())
        yield replace(h, confidence=1 / (1 + math.exp(-max(-500.0, min(500.0, odds)))))


# ------------------------------------------------------------------------------------------------------- images


def views(ink: Array, model: dict[str, Any]) -> Iterator[tuple[Array, tuple[int, int]]]:
    """The image at every scale, zero-padded to the grid of shapes of the network's training; and its size in it."""
    top, grid = max(model["scales"]), model["grid"]
    height, width = at_scale(ink, model["scale"], top).shape
    shape = padded(height, width, model["coarse"])
    for scale in model["scales"]:
        image = at_scale(ink, model["scale"], scale)
        ratio = scale / top
        height, width = shape if scale == top else (-(-math.ceil(side * ratio + 1) // 16) * 16 for side in shape)
        padded_image = np.zeros((height, width) if grid else image.shape, np.uint8)
        padded_image[: image.shape[0], : image.shape[1]] = image
        yield padded_image, image.shape


def padded(height: int, width: int, coarse: bool) -> tuple[int, int]:
    """The smallest shape of the grid that holds height x width."""
    cell, stretch, wide = (32, 1.2, 32) if coarse else (16, 1.12, 32)
    while wide < width:
        cells = wide * stretch / 16
        wide = max(wide + 16, (math.ceil(cells) if coarse else int(cells)) * 16)
    return -(-height // cell) * cell, wide


def at_scale(ink: Array, base: float, scale: float) -> Array:
    """The image as the network reads it at a scale, within the limits of sides."""
    height, width = ink.shape
    large = height > HIGH or width > WIDE
    limit = min(HIGH / height, WIDE / width) if large else max(LOW / height, LOW / width, 1.0)
    factor = base * scale * limit
    if factor == 1:
        return ink
    size = [max(1, round(side * factor)) for side in ink.shape]
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


class Decoder:
    """One image at every scale, and N hypotheses, which all have T words."""

    def __init__(self, reader: Reader, images: Iterator[tuple[Array, tuple[int, int]]]) -> None:
        encoder: Any = reader.encoder
        self.step: Any = reader.step
        self.model, self.cells = reader.model, 0
        self.known = dict[tuple[int, ...], Array]()  # [K, V] at K scales, by the words before
        self.memory, self.first, self.state = list[Named](), list[Named](), list[Named]()
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

    def begin(self, count: int) -> None:
        """Start `count` hypotheses."""
        self.places_N, self.visible_NP = np.zeros(count, np.int64), np.zeros((count, 0), np.float32)
        self.state = [
            {name: x if name in self.model["cache"] else x.repeat(count, axis=0) for name, x in first.items()}
            for first in self.first
        ]

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

    def feed(self, words_XT: Array, rows_X: Array) -> Array:
        """Log-probabilities [X, V] of the next word after one more word of hypotheses, given all words."""
        logp_XKV = self.read(words_XT[:, -1], rows_X, np.zeros((len(self.places_N), len(words_XT)), np.float32))
        self.known.update(zip(map(tuple, words_XT.tolist()), logp_XKV, strict=True))
        return logp_XKV.mean(1)

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


@dataclass
class Beam:
    """A search in one direction: M beams, and the M best hypotheses that are complete."""

    direction: str
    end: int
    words_MT: Array
    sums_M: Array  # log-probability of each beam
    complete: list[tuple[float, list[int]]] = field(default_factory=list)  # score, words after the start; best first
    open: bool = True

    def add(self, score: float, words: Array, most: int) -> None:
        """Keep a complete hypothesis if it is among the best `most`; of equal ones the earlier is better."""
        self.complete.append((score, words[1:].tolist()))
        self.complete = sorted(self.complete, key=lambda found: -found[0])[:most]


Extend = Callable[[Beam, Array, int], Array]


def extend(beam: Beam, logp_MV: Array, length: int, most: int, alpha: float) -> Array:
    """Of the 2 M best continuations, ends among the first M are complete and the best M others are the new beams.

    Returns the beam that each new one continues.
    """
    candidates = [*best_of(beam.sums_M[:, None] + logp_MV, 2 * most)]
    for sum_, row, word in candidates[:most]:
        if word == beam.end:
            beam.add(sum_ / length**alpha, beam.words_MT[row], most)
    kept = [(*candidate,) for candidate in candidates if candidate[2] != beam.end][:most]
    rows = go_on(beam, kept)
    worst = beam.complete[most - 1][0] if len(beam.complete) == most else NEVER
    beam.open = worst < beam.sums_M[0] / length**alpha
    return rows


def narrow(beam: Beam, logp_MV: Array, length: int, most: int, alpha: float) -> Array:
    """As many of the best continuations go on as hypotheses are lacking; those that end are complete."""
    lacking = most - len(beam.complete)
    candidates = [*best_of(beam.sums_M[:, None] + logp_MV, most)][:lacking]
    for sum_, row, word in candidates:
        if word == beam.end:
            beam.add(sum_ / length**alpha, beam.words_MT[row], most)
    beam.open = len(beam.complete) < most
    return go_on(beam, [candidate for candidate in candidates if candidate[2] != beam.end])


def best_of(sums_MV: Array, count: int) -> Iterator[tuple[float, int, int]]:
    """The highest values, each with its row and its column."""
    flat, V = sums_MV.ravel(), sums_MV.shape[1]
    index = np.argpartition(-flat, min(count, flat.size - 1))[:count]
    index = index[np.argsort(-flat[index], kind="stable")]
    yield from zip(flat[index].tolist(), (index // V).tolist(), (index % V).tolist(), strict=True)


def go_on(beam: Beam, candidates: Sequence[tuple[float, int, int]]) -> Array:
    """Make these the beams; returns the rows that they continue."""
    sums, rows, words = zip(*candidates, strict=True) if candidates else ((), (), ())
    rows = np.array(rows, np.int64)
    beam.words_MT = np.concatenate((beam.words_MT[rows], np.array(words, np.int64)[:, None]), axis=1)
    beam.sums_M = np.array(sums, np.float32)
    return rows


def search(decoder: Decoder, model: dict[str, Any], rule: Any, alpha: float, unfinished: int) -> list[Beam]:
    """Beam search in every direction at once. Up to `unfinished` beams count where nothing ends in time."""
    options, most = model["search"], model["search"]["beam_size"]
    beams = [
        Beam(direction, model["ends"][direction], np.array([[model["starts"][direction]]]), np.zeros(1, np.float32))
        for direction in options["directions"]
    ]
    decoder.begin(len(beams))
    running, rows = beams, np.arange(len(beams))
    for length in range(1, options["max_len"]):
        logp_NV = decoder.feed(np.concatenate([beam.words_MT for beam in running]), rows)
        kept, first = [], 0
        for beam in running:
            rows = slice(first, first + len(beam.words_MT))
            kept.append(first + rule(beam, logp_NV[rows], length, most, alpha))
            first = rows.stop
        rows = np.concatenate([rows for beam, rows in zip(running, kept, strict=True) if beam.open] or [[]]).astype(int)
        parents, rows = np.unique(rows, return_inverse=True)  # what is the same of all that continue one is done once
        decoder.keep(parents)
        running = [beam for beam in running if beam.open]
        if not running:
            return beams
    for beam in running:
        if rule is extend or not beam.complete:
            for sum_, words_T in [*zip(beam.sums_M, beam.words_MT, strict=True)][:unfinished]:
                beam.add(float(sum_) / options["max_len"] ** alpha, words_T, most)
    return beams


def rescore(
    decoder: Decoder, beams: Sequence[Beam], model: dict[str, Any], alpha: float
) -> list[list[tuple[float, float]]]:
    """What the opposite direction gives every complete hypothesis of each beam, and by how much the sizes of the image
    differ in it."""
    sequences = [
        [beam.end, *words[::-1], model["starts"][beam.direction]] for beam in beams for _, words in beam.complete
    ]
    read_whole(decoder, sequences)
    steps = np.array([len(words) - 1 for words in sequences])
    sums = np.zeros((len(decoder.memory), len(sequences)))
    for number, words in enumerate(sequences):
        for t, word in enumerate(words[1:], 1):
            sums[:, number] += decoder.known[(*words[:t],)][:, word]
    scores = zip((sums.mean(0) / steps**alpha).tolist(), sums.std(0).tolist(), strict=True)
    return [[next(scores) for _ in beam.complete] for beam in beams]


def read_whole(decoder: Decoder, sequences: Sequence[list[int]]) -> None:
    """Let all log-probabilities of these sequences be known; several steps are read at once."""
    levels = list[dict[tuple[int, ...], None]]()  # prefixes by length
    for words in sequences:
        prefixes = [(*words[:length],) for length in range(1, len(words))]
        if not all(prefix in decoder.known for prefix in prefixes):
            levels += [{} for _ in range(len(prefixes) - len(levels))]
            for level, prefix in zip(levels, prefixes, strict=False):
                level[prefix] = None
    before: dict[tuple[int, ...], int] = {(): 0}
    decoder.begin(1)
    while levels:
        read, rows, earlier = dict[tuple[int, ...], int](), list[int](), list[list[int]]()
        while levels and (not read or (len(read) + len(levels[0])) * decoder.cells <= MOST_CELLS):
            for prefix in levels.pop(0):
                inside = read.get(prefix[:-1])
                rows.append(before[prefix[:-1]] if inside is None else rows[inside])
                earlier.append([] if inside is None else [*earlier[inside], inside])
                read[prefix] = len(read)
        X = len(read)
        earlier_XX = np.zeros((X, X), np.float32)
        for x, some in enumerate(earlier):
            earlier_XX[x, some] = 1
        decoder.keep(np.array(rows))
        logps = decoder.read(np.array([prefix[-1] for prefix in read]), np.arange(X), earlier_XX)
        decoder.known.update(zip(read, logps, strict=True))
        before = read


def joint(decoder: Decoder, model: dict[str, Any], rule: Any = extend, unfinished: int = 10**6) -> list[Hypothesis]:
    """CoMER's search: every hypothesis of a direction is rescored by the other one."""
    alpha = model["search"]["alpha"]
    beams = search(decoder, model, rule, alpha, unfinished)
    if len(beams) == 2:
        reverse = rescore(decoder, beams, model, alpha)
    else:
        reverse = [[(0.0, 0.0)] * len(beam.complete) for beam in beams]
    found = []
    for beam, others in zip(beams, reverse, strict=True):
        for (forward, words), (other, spread) in zip(beam.complete, others, strict=True):
            ids = words[::-1] if beam.direction == "r2l" else words
            tokens = tuple(model["words"][word + model["offset"]] for word in ids)
            found.append(Hypothesis(tokens, forward + other, forward, other, beam.direction, len(ids) + 1, spread))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


def joint_bttr(decoder: Decoder, model: dict[str, Any]) -> list[Hypothesis]:
    """BTTR's search: beams are ranked by log-probability, and only the sum of both directions is divided."""
    alpha = model["search"]["alpha"]
    plain = {**model, "search": {**model["search"], "alpha": 0.0}}
    found = []
    for h in joint(decoder, plain, narrow, 1):
        length = max(len(h.tokens), 1)
        by = length**alpha
        found.append(replace(h, score=h.score / by, forward=h.forward / by, reverse=h.reverse / by, length=length))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


def densewap(decoder: Decoder, model: dict[str, Any]) -> list[Hypothesis]:
    """DenseWAP's search: left to right."""
    return joint(decoder, model, narrow, 0)


SEARCHES = {"joint": joint, "bttr": joint_bttr, "densewap": densewap}


# -------------------------------------------------------------------------------------------------------- LaTeX


def is_complete(tokens: Sequence[str]) -> bool:
    """Whether an expression is LaTeX that can be set: groups end, commands and scripts have what they need."""
    try:
        return bool(tokens) and _row(tokens, 0, "") == len(tokens)
    except (IndexError, RecursionError):
        return False


def _row(tokens: Sequence[str], at: int, closer: str) -> int:
    """The place after a row that ends with `closer`, or with the expression. IndexError: it does not end."""
    while at < len(tokens) or closer:
        if tokens[at] == closer:
            return at + 1
        at = _scripts(tokens, _atom(tokens, at))
    return at


def _scripts(tokens: Sequence[str], at: int) -> int:
    at += at < len(tokens) and tokens[at] == r"\limits"
    mark = tokens[at] if at < len(tokens) else ""
    if mark not in ("_", "^"):
        return at
    at = _atom(tokens, at + 1)
    if at < len(tokens) and tokens[at] in ("_", "^") and tokens[at] != mark:
        return _atom(tokens, at + 1)
    return _scripts(tokens, at)


def _atom(tokens: Sequence[str], at: int) -> int:
    token = tokens[at]
    if token == "{":
        return _row(tokens, at + 1, "}")
    if token in ("_", "^"):
        return _scripts(tokens, at)
    if token == r"\frac":
        return _argument(tokens, _argument(tokens, at + 1))
    if token == r"\sqrt":
        return _argument(tokens, _row(tokens, at + 2, "]") if tokens[at + 1] == "[" else at + 1)
    if token in ("}", r"\limits", *SPECIAL):
        raise IndexError
    return at + 1


def _argument(tokens: Sequence[str], at: int) -> int:
    token = tokens[at]
    if token == "{" or (token == "[" and _closes(tokens, at)):
        return _row(tokens, at + 1, "}" if token == "{" else "]")
    if token in ("}", r"\limits", r"\frac", *SPECIAL):
        raise IndexError
    return at + 1


def _closes(tokens: Sequence[str], at: int) -> bool:
    """Whether a ] follows a [ in the same group."""
    depth = 0
    for token in tokens[at + 1 :]:
        depth += (token == "{") - (token == "}")
        if depth < 0:
            return False
        if token == "]" and depth == 0:
            return True
    return False


def main() -> None:
    """Read the pictures named on the command line with the network beside this file."""
    from PIL import Image

    reader = Reader(Path(__file__).parent)
    for name in sys.argv[1:]:
        found = reader(np.asarray(Image.open(name).convert("L")))
        print(found[0].latex if found else "")


if __name__ == "__main__":
    main()
