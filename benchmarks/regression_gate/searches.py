"""What searches find for the fixed job: with known networks, and with committed weights of images of CROHME."""

import tempfile
from pathlib import Path

import torch

from hmerbench.benchmarks.config import Config
from hmerbench.benchmarks.data.archive import Archive
from hmerbench.benchmarks.data.samples import evenly
from hmerbench.benchmarks.recognition.predict import Reader, ranked, recognize
from hmerbench.benchmarks.regression_gate import Values, digest
from hmerbench.benchmarks.regression_gate.networks import known_language_model, known_network, random_view
from hmerbench.benchmarks.resolve import names, resolve
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.inputs import GroundTruth, tsv
from hmerbench.evaluation.scoring.metrics import WITHIN
from hmerbench.evaluation.scoring.score import NO_FIELDS, evaluate
from hmerbench.models.inference.options import Hypothesis, SearchOptions
from hmerbench.models.inference.searcher import searcher
from hmerbench.models.language import pack_language_model
from hmerbench.models.vocab import EOS, SOS, Vocabulary
from hmerbench.models.weights import load_weights, pack_weights

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
        found = Reader(known_network(config), config, torch.device("cpu"))(samples)
        best = {id_: hypotheses[0] for id_, hypotheses in found.items()}
        for what in ("forward", "reverse"):
            values[f"{preset} search: {what} score"] = sum(getattr(h, what) for h in best.values()) / len(best)
        values[f"{preset} search: hypotheses"] = digest({id_: f"{h.direction} {h.ids}" for id_, h in best.items()})
        own = config.changed({"search.beam_size": resolve("comer-fusion", preset, 0).search.beam_size})
        (list_,) = Reader(known_network(own), own, torch.device("cpu"))(samples[:1]).values()
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
        found = Reader(known_network(config).float(), config, torch.device("cpu"))(archive.samples("train")[:4])
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
    model, counts = load_weights(run.weights, config.model).eval(), dict.fromkeys(COUNTS, 0)
    for split in crohme.test_splits:
        samples, truth = evenly(crohme.samples(split), IMAGES), crohme.ground_truth(split)
        found = recognize(model, config, samples, torch.device("cpu"), split)
        with tempfile.TemporaryDirectory() as folder:
            predictions = Path(folder) / f"{split}.tsv"
            predictions.write_text(tsv({id_: tokens for id_, (tokens, _) in found.items()}))
            reference = GroundTruth({s.id: truth[s.id] for s in samples}, {s.id: list(s.tokens) for s in samples})
            score = evaluate(predictions, reference, NO_FIELDS).score
        counts = {name: count + getattr(score, name) for name, count in counts.items()}
    return {f"{ITEM}{name}": count for name, count in counts.items()}


def cost_text(before: Values, now: Values) -> str:
    """What all differences together cost in points of ExpRate; "" where no images were read, or none before."""
    if not (before.keys() & now.keys() >= {f"{ITEM}n", f"{ITEM}exact"}):
        return ""
    n, right, was = (int(values[f"{ITEM}{name}"]) for values, name in ((now, "n"), (now, "exact"), (before, "exact")))
    return (
        f"In points: the committed weights of {READER} read {right} of {n} images of CROHME right, {was} when the "
        f"baseline was recorded: {100 * (right - was) / n:+.1f} points of ExpRate (an image is {100 / n:.1f})."
    )
