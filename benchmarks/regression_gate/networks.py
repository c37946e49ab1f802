"""Known networks for the fixed job: their outputs, the types in which they compute under bf16, what searches find with
them, and with committed weights of images of CROHME; and tiny trainings of language models."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hmerbench.benchmarks import language_settings as languages
from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.batching import pad
from hmerbench.benchmarks.data.samples import Sample, evenly
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.language_models.corpus import read_corpus
from hmerbench.benchmarks.language_models.training import train
from hmerbench.benchmarks.recognition.predict import ConfiguredSearcher, ranked, recognize
from hmerbench.benchmarks.regression_gate import Values, digest
from hmerbench.benchmarks.resolve import names, resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.benchmarks.runs.run import LanguageRun
from hmerbench.evaluation.scoring.metrics import WITHIN
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.models.inference.hypothesis import Hypothesis
from hmerbench.models.inference.options import SearchOptions
from hmerbench.models.inference.searcher import View, searcher
from hmerbench.models.language import LINE_END, UNKNOWN, LanguageModel, Lexicon, pack_language_model
from hmerbench.models.network import Network, build
from hmerbench.models.vocab import EOS, SOS, SPECIAL, Vocabulary
from hmerbench.models.weights import load_weights, pack_weights

# for a network that wants formulas
NESTED = r"\frac { x ^ { 2 } } { \sqrt { y _ { i } } } + \sum _ { n = 1 } ^ { k } z"
EXACT = ("softmax", "norm", "nll_loss")  # of which operations the types count


def network_values() -> Values:
    """Teacher-forced loss, a fixed projection of all logits and the mean best score of the joint search, for a small
    float64 network per recipe. Weights do not depend on torch's random numbers."""
    samples, view = [_random_sample(seed) for seed in range(3)], random_view(3)
    values: Values = {}
    for recipe in names("recipes"):
        config = resolve(recipe, "paper", 0)
        model, direction = known_network(config), config.search.direction
        captions = [NESTED.split() if model.unfit(sample.tokens) else sample.tokens for sample in samples]
        targets = model.targets(captions)
        with torch.no_grad():
            logits, _ = model.teacher_forced(*view, targets)
            loss = model(*view, targets)
        # nearly every word for a search that drops what has no end in time
        for beams in (3, len(Vocabulary()) - len(SPECIAL)):
            nbest = searcher(model)([view], SearchOptions(beam_size=beams, max_len=12, direction=direction))
            if all(nbest):
                break
        weights = torch.cos(torch.arange(logits.numel(), dtype=logits.dtype))
        values[f"{recipe} network: loss"] = float(loss)
        values[f"{recipe} network: logits"] = float(logits.flatten() @ weights / logits.norm())
        values[f"{recipe} network: search"] = sum(hypotheses[0].score for hypotheses in nbest) / len(nbest)
    read = searcher(*(known_network(resolve(recipe, "paper", 0)) for recipe in ("comer-fusion", "bttr-baseline")))
    nbest = read([view], SearchOptions(beam_size=3, max_len=12))
    values["two networks together: search"] = sum(hypotheses[0].score for hypotheses in nbest) / len(nbest)
    return values


def known_network(config: Config, **changes: Any) -> Network:
    """A small version of the recipe's network, with changes of its settings; each weight tensor depends only on its
    name and shape."""
    if "micro" not in config.model.sizes:
        raise UserError(f"{config.model.network}: regress builds it in size 'micro', which its settings' `sizes` lack")
    small = replace(config.model, **config.model.sizes["micro"] | changes)
    model = build(small).double().eval()
    for name, tensor in model.state_dict().items():
        draw = np.random.default_rng(list(name.encode()))
        values = draw.standard_normal(tuple(tensor.shape))
        if tensor.ndim > 1:
            values *= 1.5 * (tensor[0].numel() ** -0.5)
        elif name.endswith(("weight", "running_var")):
            values = 1 + 0.3 * np.tanh(values)
        tensor.copy_(torch.from_numpy(np.asarray(values * (0.0 if tensor.dtype == torch.int64 else 1.0))))
    return model


def _random_sample(seed: int) -> Sample:
    """A random label with an image of random blocks: unlike typeset images, these do not depend on fonts."""
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 2, (3 + seed, 6 - seed), dtype=np.uint8) * np.uint8(255)
    tokens = tuple(Vocabulary().decode(draw.integers(len(SPECIAL), len(Vocabulary()), 5 + seed).tolist()))
    return Sample(f"random_{seed}", tokens, np.kron(blocks, np.ones((12, 14), np.uint8)))


def random_view(count: int) -> View:
    """Images of that many random samples, in float64, padded to one size."""
    images, mask = pad([_random_sample(seed).image for seed in range(count)])
    return images.double() / 255, mask


class Types(TorchDispatchMode):
    """Collects the types in which the operations named in EXACT give their results."""

    def __init__(self) -> None:
        super().__init__()
        self.found = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name, first = func.overloadpacket.__name__, result[0] if isinstance(result, tuple) else result
        if any(part in name for part in EXACT):
            self.found.add(f"{name} {str(first.dtype).removeprefix('torch.')}")
        return result


def type_values() -> Values:
    """In which types a training step and a search of each kind of network compute what must stay exact under bf16.

    The numbers themselves differ between processors by more than such a fault would change them.
    """
    values: Values = {}
    samples, (images, mask) = [_random_sample(seed) for seed in range(3)], random_view(3)
    view = images.float(), mask
    for recipe in ("comer-fusion", "bttr-original", "densewap", "densewap-td"):
        config = resolve(recipe, "paper", 0)
        model, options = known_network(config).float(), SearchOptions(3, 4, direction=config.search.direction)
        captions = [NESTED.split() if model.unfit(sample.tokens) else sample.tokens for sample in samples]
        with torch.autocast("cpu", torch.bfloat16), Types() as seen:
            model.train()(*view, model.targets(captions), 0.1).backward()
        values[f"{recipe} under bf16: training"] = ", ".join(sorted(seen.found))
        with torch.autocast("cpu", torch.bfloat16), Types() as seen:
            searcher(model.eval())([view], options)
        values[f"{recipe} under bf16: search"] = ", ".join(sorted(seen.found))
    return values


WORDS = ["a", "ab", "ba", "abba", "babba", "aabb"]
SIZES = {"character_size": 3, "filters": 2, "most_filters": 5, "word_size": 6, "hidden": 8}


def language_values() -> Values:
    """Loss and a fixed projection of the gradient of the papers' recipes; perplexities and rates of tiny trainings."""
    values: Values = {}
    words_TB, targets_TB = torch.from_numpy(np.random.default_rng(0).integers(0, 2 + len(WORDS), (2, 7, 3)))
    for recipe in (name for name in names(languages.RECIPES) if name.startswith("lm-")):
        model = known_language_model(WORDS, recipe)
        loss, _ = model(words_TB, targets_TB, model.initial_state(3))
        loss.backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        gradient = torch.cat(gradients)
        projection = gradient @ torch.cos(torch.arange(len(gradient), dtype=gradient.dtype))
        values[f"{recipe} network: loss"] = float(loss.detach())
        values[f"{recipe} network: gradient"] = float(projection / gradient.norm())
    values |= _first_epochs("lm-char-small seed 7", "lm-char-small", 7)
    for recipe in names(languages.RECIPES):
        values |= _first_epochs(recipe, recipe)
    return values


@torch.no_grad()
def known_language_model(words: Sequence[str], recipe: str = "lm-char-small") -> LanguageModel:
    """A small version of a recipe's network, in evaluation mode; its weights depend only on their names and shapes."""
    config = replace(languages.resolve(recipe, 0).model, **SIZES, widths=3, dropout=0.0)
    model = LanguageModel(config, Lexicon([UNKNOWN, LINE_END, *words])).double().eval()
    for name, parameter in model.named_parameters():
        draw = np.random.default_rng(list(name.encode()))
        parameter.copy_(torch.from_numpy(0.5 * draw.standard_normal(tuple(parameter.shape))))
    return model


def _first_epochs(name: str, recipe: str, seed: int = 0) -> Values:
    changes = {"epochs": 4, "batch_size": 3, "steps": 5, "bf16": False, "improvement": 0.05}
    settings = languages.resolve(recipe, seed).changed({"model": {**SIZES, "widths": 3}, "training": changes})
    with tempfile.TemporaryDirectory() as place:
        folder, draw = Path(place), np.random.default_rng(1)
        for split, lines in (("train", 60), ("valid", 20), ("test", 10)):
            text = "".join(" ".join(draw.choice(WORDS, draw.integers(1, 7))) + "\n" for _ in range(lines))
            (folder / f"{split}.txt").write_text(text)
        corpus = read_corpus(folder, settings.text.line_ends)
        run = LanguageRun(folder / "run", languages.tied(settings, corpus.name, corpus.digest))
        train(run, corpus)
        values = {f"epoch {line['epoch']}": line["train_perplexity"] for line in run.history}
        values |= {"validation": run.scores["valid_perplexity"], "test": run.scores["test_perplexity"]}
        values |= {"last rate": run.history[-1]["rate"]}
    return {f"{name} first steps: {item}": value for item, value in values.items()}


# ------------------------------------------------------------------------------------------------------------ searches


SHORT = {"beam_size": 3, "max_len": 12, "bf16": False}
UNCONVERTED, CONVERTED = (
    Hypothesis(tuple(Vocabulary().encode(label.split())), score, score, 0.0, "l2r")
    for label, score in (("x ^ {", -1.0), ("x ^ { 2 }", -2.0))
)


def search_values(archive: Archive) -> Values:
    """Scores, directions and tokens of the hypotheses that each preset predicts, its search shortened, with a known
    network, all of which convert to symLG; and the score of the one predicted from two of which the best does not."""
    values: Values = {}
    samples = evenly(archive.samples("train"), 4)
    for preset in names("presets"):
        config = resolve("comer-fusion", preset, 0, archive).changed({"search": SHORT})
        found = ConfiguredSearcher(known_network(config), config, torch.device("cpu"))(samples)
        best = {id_: hypotheses[0] for id_, hypotheses in found.items()}
        for what in ("forward", "reverse"):
            values[f"{preset} search: {what} score"] = sum(getattr(h, what) for h in best.values()) / len(best)
        values[f"{preset} search: hypotheses"] = digest({id_: f"{h.direction} {h.ids}" for id_, h in best.items()})
        own = config.changed({"search.beam_size": resolve("comer-fusion", preset, 0).search.beam_size})
        (list_,) = ConfiguredSearcher(known_network(own), own, torch.device("cpu"))(samples[:1]).values()
        values[f"{preset} search: list of its own beam"] = digest({str(k): str(h.ids) for k, h in enumerate(list_)})
        values[f"{preset} search: predicted"] = str(ranked([UNCONVERTED, CONVERTED], config, Vocabulary())[0].score)
    return values


def blind_values() -> Values:
    """In which order hypotheses of equal score come, and when a search ends: with networks that give words the same
    probabilities at every step, whatever they see."""
    x, y, ends = *Vocabulary().encode(["x", "y"]), [SOS, EOS]
    ((first, second),) = _blind_search({x: 3.0, ends[0]: 2.0, ends[1]: 2.0}, SearchOptions(beam_size=1, max_len=4))
    assert first.score == second.score
    # every word more makes a hypothesis better, so the search goes on when it has as many as it keeps
    (longer,) = _blind_search({x: 9.0, y: 1.0, ends[0]: 7.0, ends[1]: 7.0}, SearchOptions(beam_size=2, max_len=8))
    return {
        "ties of a search: directions": f"{first.direction}, {second.direction}",
        "blind search: lengths": str([len(hypothesis.ids) for hypothesis in longer]),
    }


def _blind_search(logits: dict[int, float], options: SearchOptions) -> list[list[Hypothesis]]:
    network = known_network(resolve("comer-fusion", "paper", 0))
    _, bias_V = (network.state_dict()[f"decoder.proj.{name}"].zero_() for name in ("weight", "bias"))
    bias_V[list(logits)] = bias_V.new_tensor(list(logits.values()))
    return searcher(network)([random_view(1)], options)


def joint_reading_values(archive: Archive) -> Values:
    """What three networks read together, ranked with a language model, all from their files."""
    config = resolve("comer-fusion", "small", 0, archive)
    with tempfile.TemporaryDirectory() as name:
        others = [resolve(recipe, "small", 0, archive) for recipe in ("bttr-baseline", "comer-cross")]
        runs = [_known_run(Path(name) / other.recipe, other) for other in others]
        language = Path(name) / "language.safetensors"
        language.write_bytes(pack_language_model(known_language_model(Vocabulary().words).float()))
        changes = {"together": {"runs": runs}, "language": {"weights": str(language), "weight": 0.3, "length": 0.2}}
        config = config.changed({"search": {**SHORT, **changes}})
        found = ConfiguredSearcher(known_network(config).float(), config, torch.device("cpu"))(
            archive.samples("train")[:4]
        )
    best = [hypotheses[0] for hypotheses in found.values()]
    return {
        "joint reading: score": sum(hypothesis.score for hypothesis in best) / len(best),
        "joint reading: score of networks": sum(hypothesis.forward for hypothesis in best) / len(best),
    }


def _known_run(path: Path, config: Config) -> str:
    run, network = RunFolder(path, config), known_network(config).float()
    run.write("config.yaml", config.to_yaml())
    run.write("best.safetensors", pack_weights(network))
    return str(path)


READER, IMAGES = "comer-fusion/medium-seed7", 14  # of each test set, evenly spaced
COUNTS = ("n", *(metric.count for metric in WITHIN[:3]))
ITEM = f"{READER.replace('/', ' ')} read again: "


def reading_values(crohme: Archive, reproduced: Path) -> Values:
    """How many images the committed weights READER read right, in float32, so that processors hardly differ."""
    run = RunFolder(reproduced / READER)
    config = run.settings.changed({"search.bf16": False})
    model, counts = load_weights(run.weights_file, config.model).eval(), dict.fromkeys(COUNTS, 0)
    for split in crohme.tests:
        samples = evenly(crohme.samples(split), IMAGES)
        found = recognize(model, config, samples, torch.device("cpu"), split)
        texts = {id_: " ".join(tokens) for id_, (tokens, _) in found.items()}
        score = evaluate(texts, crohme.truth_of(split, [sample.id for sample in samples]), NO_FIELDS).score
        counts = {name: count + getattr(score, name) for name, count in counts.items()}
    return {f"{ITEM}{name}": count for name, count in counts.items()}


def cost_text(before: Values, now: Values) -> str:
    """What all differences together cost the committed weights in points of ExpRate; "" where no images were read, or
    none before."""
    if not (before.keys() & now.keys() >= {f"{ITEM}n", f"{ITEM}exact"}):
        return ""
    n, right, was = (int(values[f"{ITEM}{name}"]) for values, name in ((now, "n"), (now, "exact"), (before, "exact")))
    return (
        f"In points: the committed weights of {READER} read {right} of {n} images of CROHME right, {was} when the "
        f"baseline was recorded: {100 * (right - was) / n:+.1f} points of ExpRate (an image is {100 / n:.1f}). "
        "What a difference does in training or in another network is not in this."
    )
