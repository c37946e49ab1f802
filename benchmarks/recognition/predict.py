"""Recognition: the search of a network, or of an ensemble, over the images of a split; predictions and scores.

Others may read together with a run's own network (`search.together`): the log-probability of a word is then their
mean. Each was trained in a run of its own; they may differ in recipe, size and seed, not in the scale of the images. A
language model may rank the search's hypotheses anew (`search.language`): one of n tokens gets score + weight * log p /
steps ** alpha + length * n. log p is the language model's log-probability of its line, the line's end included, and
steps = n + 1: as in each direction of CoMER's search.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import torch

from hmerbench.benchmarks.config import Config, Language, Search, digest_of_keys
from hmerbench.benchmarks.data.archive import Archive, counted_words, open_archive, unknown_words
from hmerbench.benchmarks.data.batching import Batch, evaluation_batches
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.environment import best_device, device_name, in_bf16, revision, search_processes
from hmerbench.benchmarks.errors import Lost, UserError, lacks_memory, out_of_memory_reason
from hmerbench.benchmarks.files import digest_of, write_atomically
from hmerbench.benchmarks.printing import err_console, progress
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runtime import configure_libraries, end_with_parent
from hmerbench.evaluation.scoring.inputs import tsv
from hmerbench.evaluation.symlg import Unconverted, from_latex
from hmerbench.models.files import parse_json
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.inference.searcher import Searcher, searcher
from hmerbench.models.language import LINE_END, load_language_model
from hmerbench.models.network import Network
from hmerbench.models.vocab import SPECIAL, Vocabulary
from hmerbench.models.weights import load_weights


def others(config: Config, device: torch.device, words: Vocabulary) -> list[Network]:
    """The other networks of a run, ready to read; `words` are those of its own.

    Raises UserError for weights that are not those the run was made with, and for a network that cannot read as the run
    does; CheckpointError for weights that cannot be loaded.
    """
    together, found = config.search.together, list[Network]()
    for number, path in enumerate(together.weights):
        if not path.is_file():
            raise UserError(f"{path}: this run reads together with these weights; restore them, or make another run")
        if together.digests and digest_of(path) != together.digests[number]:
            raise UserError(f"{path}: this run was made with other weights; restore them, or make another run")
        network, its = load_weights(path), RunFolder(path.parent).settings
        if not network.settings.together:
            raise UserError(f"{path}: {its.recipe} reads alone; give runs of networks of CoMER's kind")
        if config.search.direction not in network.settings.directions:
            raise UserError(f"{path}: {its.recipe} does not read {config.search.direction}; give another run")
        if network.vocabulary.words != words.words:
            raise UserError(
                f"{path}: its network has other words than this run's; give runs trained on the same captions"
            )
        if its.data.scale != config.data.scale:
            raise UserError(
                f"{path}: its network reads images at scale {its.data.scale:g}, this run at {config.data.scale:g}; "
                "give runs of the same scale"
            )
        found.append(network.to(device).eval())
    return found


class Lines:
    """Log-probabilities of hypotheses by the language model of a run's settings.

    Raises UserError if it lacks a symbol of the vocabulary or ends of lines, or is not the one that the run was made
    with; CheckpointError if it cannot be loaded.
    """

    def __init__(self, language: Language, vocabulary: Vocabulary) -> None:
        path, symbols = language.path, [word for word in vocabulary.words if word not in SPECIAL]
        self.model = load_language_model(path)
        if lacking := [word for word in symbols if word not in self.model.lexicon.index]:
            raise UserError(
                f"{path}: this language model lacks {len(lacking)} of the recognizer's {len(symbols)} symbols, such as "
                f"{lacking[0]}; give one trained on captions (`reproduce-lm --recipes captions`)"
            )
        if LINE_END not in self.model.lexicon.index:
            raise UserError(f"{path}: this language model knows no ends of lines; give one trained with text.line_ends")
        if language.digest and digest_of(path) != language.digest:
            raise UserError(
                f"{path}: the run was made with another language model; restore that one, or make another run"
            )
        with torch.no_grad():
            self.vectors_VF = self.model.vectors(torch.arange(len(self.model.lexicon)))

    def __call__(self, hypotheses: Sequence[Sequence[str]]) -> list[float]:
        """Log-probability in nats of each; the same tokens are read once."""
        distinct = list(dict.fromkeys(map(tuple, hypotheses)))
        with torch.autocast("cpu", enabled=False):  # as it was trained, whatever the search computes in
            found = self.model.of_lines(distinct, self.vectors_VF) if distinct else []
        log_p = dict(zip(distinct, found, strict=True))
        return [log_p[tuple(tokens)] for tokens in hypotheses]


def with_language_model(
    hypotheses: Sequence[Hypothesis], lines: Lines, search: Search, vocabulary: Vocabulary
) -> list[Hypothesis]:
    """The hypotheses of an image with the language model's share in their scores, best first."""
    language, scored = search.language, list[Hypothesis]()
    for h, log_p in zip(hypotheses, lines([vocabulary.decode(h.ids) for h in hypotheses]), strict=True):
        tokens = len(h.ids)
        score = h.score + language.weight * log_p / (tokens + 1) ** search.alpha + language.length * tokens
        scored.append(replace(h, score=score))
    return sorted(scored, key=lambda hypothesis: hypothesis.score, reverse=True)


# ------------------------------------------------------------------------------------------------------------- reading


PREFIX = ".reading-"  # of the files that keep what was read of a set so far
GPU_IMAGES, GPU_PIXELS = 64, 6_000_000  # that a GPU reads at once: images, and padded pixels at the largest scale
SCORES = ("score", "forward", "reverse", "direction", "spread")  # of a hypothesis
Predictions = dict[str, tuple[tuple[str, ...], list[Hypothesis]]]  # id -> (best tokens, hypotheses, best first)


class Kept:
    """The hypotheses of batches that were read, by the ids of their images, kept in a file, so that a search that is
    stopped goes on where it was; a line of the file holds a batch."""

    def __init__(self, folder: Path, made_by: Mapping[str, Any], part: int = 0) -> None:
        """The file is named by a hash of `made_by`, which must hold all that can change what is read, and by the part
        that this process reads; what others of any number of parts have read is taken, too."""
        name = f"{PREFIX}{digest_of_keys(made_by)}"
        self.path = folder / f"{name}-{part}.jsonl"
        own = _kept_batches(self.path) if self.path.exists() else {}
        write_atomically(self.path, "".join(map(_line, own, own.values())))  # without a last line that was cut short
        self.batches = dict[tuple[str, ...], list[list[Hypothesis]]]()
        for path in folder.glob(f"{name}-*.jsonl"):
            self.batches |= _kept_batches(path)

    def add(self, ids: Sequence[str], nbest: list[list[Hypothesis]]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(_line(ids, nbest))


def _kept_batches(path: Path) -> dict[tuple[str, ...], list[list[Hypothesis]]]:
    batches = {}
    with suppress(ValueError, TypeError, KeyError):  # a damaged line: what follows is read again
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:  # the last one is empty, or was cut short
            row = parse_json(line)
            nbest = [[Hypothesis(**each | {"ids": tuple(each["ids"])}) for each in found] for found in row["nbest"]]
            batches[tuple(row["ids"])] = nbest
    return batches


def _line(ids: Sequence[str], nbest: list[list[Hypothesis]]) -> str:
    return json.dumps({"ids": [*ids], "nbest": [[asdict(each) for each in found] for found in nbest]}) + "\n"


def predict(run: RunFolder, archive: Archive, splits: Iterable[str]) -> None:
    """Write predictions/<split>.tsv (id, tokens) and <split>.jsonl (n-best, scores). Resumes where it was stopped.

    Images larger than `data.max_area` get no prediction and count as errors. Raises UserError without trained
    weights, and for a folder with a run of other settings.
    """
    config, splits = run.settings, list(splits)
    run.refuse_other()
    if not run.has_weights:
        raise UserError(f"{run.weights_file}: there are no trained weights yet; train this run first")
    device, digest = best_device(), run.file_digest(run.weights_file.name)
    model = load_weights(run.weights_file, config.model).to(device).eval()
    made_by = {"weights": digest, "settings": config.digest, "data": archive.digest, "revision": revision()}
    made_by |= {"device": device_name(device), "bf16": in_bf16(config.search.bf16, device)}
    # a GPU reads fuller batches faster, of all sets at once; a CPU may be stopped after each
    parts = search_processes(device)
    at_once = (device.type == "cuda" or parts > 1) and config.training.batching.order == "shape"
    for group in [splits] if at_once and splits else [[split] for split in splits]:
        samples = named_samples(archive, group, config)
        for split in group:
            _tell_wrong(split, samples, archive, model, config.data.max_area)
        made_by["sets"] = group
        if at_once and parts > 1:
            found = _read_in_parts(run, archive, group, made_by, parts)
        else:
            found = recognize(model, config, samples, device, ", ".join(group), kept=Kept(run.path, made_by))
        for split in group:
            own = {name.removeprefix(f"{split}/"): found[name] for name in found if name.startswith(f"{split}/")}
            write_predictions(run, split, own, model.vocabulary)
            run.record_source(f"predictions/{split}.tsv", digest)
    for kept in run.path.glob(f"{PREFIX}*.jsonl"):  # not sooner: a command stopped in its last set reads no other again
        kept.unlink(missing_ok=True)


def _tell_wrong(split: str, samples: Sequence[Sample], archive: Archive, model: Network, max_area: int) -> None:
    """Count in a line each what the network cannot read: images too large, words that it lacks."""
    sizes = [sample.image.size for sample in samples if sample.id.startswith(f"{split}/")]
    if large := sum(size > max_area for size in sizes):
        reading = f"reading {len(sizes) - large:,} of {len(sizes):,} images"
        limit = f"data.max_area of {max_area:,} px"
        err_console.print(f"{split}: {reading}; counted as missing, above {limit}: {large:,}")
    if lacking := unknown_words(archive.captions(split).values(), model.vocabulary.ids):
        words = counted_words(lacking)
        right = "such a caption is read right only where the scorer gives another word the same label"
        err_console.print(f"{split}: words that these weights lack: {words}; {right}")


def named_samples(archive: Archive, splits: Iterable[str], config: Config) -> list[Sample]:
    """The samples of several test sets, whose ids may be the same: they become SPLIT/ID."""
    return [
        replace(sample, id=f"{split}/{sample.id}")
        for split in splits
        for sample in archive.samples(split, config.data.max_area, config.search.limit)
    ]


def _read_in_parts(
    run: RunFolder, archive: Archive, splits: Sequence[str], made_by: dict[str, Any], parts: int
) -> Predictions:
    """`_read_part` of all parts, at once. Raises Lost if one of its processes is killed, for which a pool would wait
    for ever."""
    others = {*active_children()}
    with get_context("spawn").Pool(parts, end_with_parent) as pool:  # CUDA does not survive a fork
        processes = {*active_children()} - others
        shares = [(run.path, archive.path, splits, made_by, part, parts) for part in range(parts)]
        reading = pool.starmap_async(_read_part, shares)
        while not reading.ready():
            reading.wait(1)
            if not all(process.is_alive() for process in processes):
                raise Lost(f"{run.path}: a process that reads was lost; run the same command again to go on")
        return {name: prediction for predictions in reading.get() for name, prediction in predictions.items()}


def _read_part(
    folder: Path, archive: Path, splits: Sequence[str], made_by: dict[str, Any], part: int, parts: int
) -> Predictions:
    """In a process of its own: every `parts`-th batch of the test sets, as read by the run in `folder`."""
    configure_libraries()
    run, device = RunFolder(folder), best_device()
    torch.set_num_threads(1)
    samples = named_samples(open_archive(archive, trains=False), splits, run.settings)
    model = load_weights(run.weights_file, run.settings.model).to(device).eval()
    what = ", ".join(splits) if part == 0 else None
    kept = Kept(folder, made_by, part)
    return recognize(model, run.settings, samples, device, what, slice(part, None, parts), kept)


def recognize(
    model: Network,
    config: Config,
    samples: list[Sample],
    device: torch.device,
    what: str | None,
    part: slice = slice(None),
    kept: Kept | None = None,
) -> Predictions:
    """Search over `samples`, named `what` in progress, or over a part of their batches, but for what was `kept`; ids in
    the order in which they were recognized."""
    decode = model.vocabulary.decode
    nbest = ConfiguredSearcher(model, config, device)(samples, what, part, kept)
    return {id_: (tuple(decode(best[0].ids)) if best else (), best) for id_, best in nbest.items()}


def read_right(model: Network, config: Config, samples: list[Sample], device: torch.device, what: str) -> set[str]:
    """The ids of the samples that are read token by token as their captions say."""
    read = recognize(model, config, samples, device, what)
    return {sample.id for sample in samples if read.get(sample.id, ((),))[0] == sample.tokens}


class ConfiguredSearcher:
    """A network ready to read as its settings say: alone or with others, with a language model or without."""

    @torch.inference_mode()
    def __init__(self, model: Network, config: Config, device: torch.device):
        """Raises UserError for a language model or another network that does not fit (`search.language`,
        `search.together`)."""
        self.config, self.vocabulary, self.device = config, model.vocabulary, device
        self.lines = Lines(config.search.language, model.vocabulary) if config.search.language.weights else None
        self.bf16 = in_bf16(config.search.bf16, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            self.read = searcher(model, *others(config, device, model.vocabulary))

    @torch.inference_mode()
    def __call__(
        self, samples: list[Sample], what: str | None = None, part: slice = slice(None), kept: Kept | None = None
    ) -> dict[str, list[Hypothesis]]:
        """Hypotheses by id: the one to predict, then the others, best first; of a `part` of the batches, if not all.
        Batches that are `kept` are not read again, and others are added to them.

        Progress is shown if it has a name, `what`. In order `shape`, where an image's hypotheses do not depend on the
        rest of its batch, a GPU reads more at once. Raises UserError if a score is not a number.
        """
        config, result, size, pixels = self.config, dict[str, list[Hypothesis]](), self.config.search.batch_size, None
        if self.device.type == "cuda" and config.training.batching.order == "shape":
            size, pixels = max(size, GPU_IMAGES), GPU_PIXELS
        batches = evaluation_batches(samples, config, size, config.search.scales, pixels, part)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            for batch in progress(batches, f"recognizing {what}") if what else batches:
                nbest = kept.batches.get(tuple(batch.ids)) if kept else None
                if nbest is None:
                    found = _search(self.read, batch, config.search.options, self.device)
                    nbest = [self._ranked(*each) for each in zip(batch.ids, found, strict=True)]
                    if kept:
                        kept.add(batch.ids, nbest)
                result |= zip(batch.ids, nbest, strict=True)
        return result

    def _ranked(self, id_: str, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        if any(math.isnan(hypothesis.score) for hypothesis in hypotheses):
            raise UserError(
                f"{id_}: the network overflows on this image, so its weights are unusable; give or train others"
            )
        if self.lines:
            hypotheses = with_language_model(hypotheses, self.lines, self.config.search, self.vocabulary)
        return ranked(hypotheses, self.config, self.vocabulary)


def _search(read: Searcher, batch: Batch, options: SearchOptions, device: torch.device) -> list[list[Hypothesis]]:
    """The hypotheses of a batch, split in halves as long as GPU memory runs out.

    Halves keep their padding, so results are the same up to rounding. Raises UserError if not even a single image fits.
    """
    try:
        return read([(images.to(device).float() / 255, mask.to(device)) for images, mask in batch.views], options)
    except RuntimeError as error:  # its traceback keeps the search's tensors alive until this block ends
        if not lacks_memory(error):
            raise
        lacking = out_of_memory_reason(error)
    size = len(batch.ids)
    height, width = max(mask.shape[1:] for _, mask in batch.views)
    if size == 1:
        fix = "CUDA_VISIBLE_DEVICES= (to nothing) searches on the CPU"
        raise UserError(f"{batch.ids[0]}: {lacking}, to search it ({width} x {height} px); {fix}")
    torch.cuda.empty_cache()
    err_console.print(f"{lacking}: {size} images of {width} x {height} px are split in half and searched")
    halves = batch.part(slice(size // 2)), batch.part(slice(size // 2, size))
    return [hypotheses for half in halves for hypotheses in _search(read, half, options, device)]


def ranked(hypotheses: list[Hypothesis], config: Config, vocabulary: Vocabulary) -> list[Hypothesis]:
    """The hypotheses, best first, with the one to predict moved to the front (`search.convertible`)."""
    for hypothesis in hypotheses if config.search.convertible else ():
        try:
            from_latex(vocabulary.decode(hypothesis.ids))
        except Unconverted:
            continue
        return [hypothesis, *(h for h in hypotheses if h is not hypothesis)]
    return hypotheses


def write_predictions(run: RunFolder, split: str, predictions: Predictions, vocabulary: Vocabulary) -> None:
    """Replace both files of a split atomically; the table last, since it marks the split as recognized."""
    decode, rows = vocabulary.decode, []
    for id_, (tokens, hypotheses) in sorted(predictions.items()):
        nbest = [{"tokens": " ".join(decode(h.ids)), **{key: getattr(h, key) for key in SCORES}} for h in hypotheses]
        score = hypotheses[0].score if hypotheses else None
        rows.append({"id": id_, "tokens": " ".join(tokens), "score": score, "nbest": nbest})
    run.write(f"predictions/{split}.jsonl", rows)
    run.write(f"predictions/{split}.tsv", tsv({id_: tokens for id_, (tokens, _) in predictions.items()}))
