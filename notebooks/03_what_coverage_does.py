# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What coverage does
#
# A decoder that does not know where it has looked may read a symbol twice (over-parsing) or never (under-parsing).
# CoMER's attention refinement module (ARM) accumulates past attention and subtracts a refinement term R from the
# attention energies where the network has already looked. Here the same images are read with and without R, in two
# ways:
#
# 1. **R set to 0 at test time**: the same weights with the refinement switched off. The network was trained with R, so
#    this shows how much it depends on R, *not* how a network trained without R would behave.
# 2. **Two trainings**: BTTR (baseline) against CoMER (Fusion), where runs of both exist.
#
# With `CROHME=path/to/data.zip` the images are handwritten; without it they come from the embedded set, whose numbers
# say nothing about CROHME.

# %%
import copy
import os
import tempfile
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import display

from benchmarks.config import load
from benchmarks.data.archive import open_archive
from benchmarks.data.ink import INKLESS
from benchmarks.data.samples import Sample, evenly
from benchmarks.data.synthetic import embedded
from benchmarks.recognition.attention import trace
from benchmarks.recognition.predict import recognize
from benchmarks.report.figures.attention import figure
from benchmarks.runs.folder import RunFolder
from evaluation.scoring.inputs import read_predictions
from evaluation.scoring.tokens import tokens_of
from models import CoMER
from models.weights import load_weights

ROOT = next(folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "pyproject.toml").exists())
RUN = ROOT / "results/reproduced/comer-fusion/hour-seed7"
if crohme := os.environ.get("CROHME"):
    archive, split, count = open_archive(ROOT / crohme), "2014", 100
else:
    archive = open_archive(embedded(Path(tempfile.mkdtemp()) / "data.zip", train=1, test=40))
    split, count = "test", 40
samples = evenly(archive.samples(split), count)
print(f"{archive.edition}: {len(samples)} images of {split}")

# %% [markdown]
# ## Over- and under-parsing, counted
# Prediction and ground truth are aligned by edit distance (insertion, deletion and substitution cost 1), after removing
# tokens without ink (braces and scripts). An inserted symbol was *over-parsed*, a deleted one *under-parsed*; a
# substituted symbol was read once, as it should be, and says nothing about coverage.


# %%
def parsed(truth: tuple[str, ...], read: tuple[str, ...]) -> Counter[str]:
    """Count over-parsed, under-parsed and mistaken symbols (Levenshtein alignment, preferring substitutions)."""
    truth, read = (tuple(token for token in tokens if token not in INKLESS) for tokens in (truth, read))
    row = [(j, j, 0) for j in range(len(read) + 1)]  # (cost, over-parsed, under-parsed) of truth[:i] with read[:j]
    for i, symbol in enumerate(truth, 1):
        previous, row = row, [(i, 0, i)]
        for j, other in enumerate(read, 1):
            paired = (previous[j - 1][0] + (symbol != other), *previous[j - 1][1:])
            deleted = (previous[j][0] + 1, previous[j][1], previous[j][2] + 1)
            inserted = (row[-1][0] + 1, row[-1][1] + 1, row[-1][2])
            row.append(min(paired, deleted, inserted, key=lambda cell: (cell[0], cell[1] + cell[2])))
    cost, over, under = row[-1]
    return Counter({"over-parsed": over, "under-parsed": under, "mistaken": cost - over - under})


print(parsed(("x", "^", "{", "2", "}", "+", "x"), ("x", "^", "{", "2", "}", "+", "x", "+", "x")))


# %%
def compare(read: dict[str, dict[str, tuple[str, ...]]], truth: dict[str, tuple[str, ...]]) -> pd.DataFrame:
    """One row per reader: the number of images with each kind of error, of such symbols, and of correct images."""
    rows = {}
    for name, predicted in read.items():
        counts = [parsed(truth[id_], predicted.get(id_, ())) for id_ in truth]
        images = {f"images {kind}": sum(count[kind] > 0 for count in counts) for kind in counts[0]}
        symbols = {f"symbols {kind}": sum(count[kind] for count in counts) for kind in counts[0]}
        rows[name] = {**images, **symbols, "images right": sum(predicted.get(id_) == truth[id_] for id_ in truth)}
    return pd.DataFrame(rows).T


def chart(counts: pd.DataFrame, title: str) -> None:
    axes = counts.filter(regex="^images").T.plot.bar(rot=0, figsize=(7, 3), color=["#0072B2", "#E69F00"])
    for bars in axes.containers:
        axes.bar_label(bars)
    axes.set(title=title, ylabel="images")
    axes.margins(y=0.12)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
    axes.set_xticklabels([label.get_text().removeprefix("images ") for label in axes.get_xticklabels()])
    plt.tight_layout()


# %% [markdown]
# ## The same weights, with R and with R = 0
# R is the output of a batch normalization; with scale and shift at 0, R is 0 everywhere. Decoding stops after 60
# tokens, because without R it often would not stop by itself: symbol counts are therefore too low, image counts are
# not.

# %%
config = load(RUN / "config.yaml").changed({"search.max_len": 60})
with_arm = load_weights(RUN / "best.safetensors", config.model).eval()
assert isinstance(with_arm, CoMER)
without = copy.deepcopy(with_arm)
assert without.decoder.model.arm is not None
norm = without.decoder.model.arm.post_norm.bn
torch.nn.init.zeros_(norm.weight)
torch.nn.init.zeros_(norm.bias)

readers = {"with R": with_arm, "R = 0 (ablation at test time)": without}
read = {
    name: {id_: tokens for id_, (tokens, _) in recognize(model, config, samples, torch.device("cpu"), split).items()}
    for name, model in readers.items()
}
truth = {sample.id: sample.tokens for sample in samples}
counts = compare(read, truth)
chart(counts, f"{config.recipe}, {config.preset}: {len(samples)} images of {archive.name} {split}")
display(counts.T)

# %% [markdown]
# ## One image, twice
# The shortest prediction that is correct with R and over-parsed without. Above (a) with R, below (b) the same weights
# with R = 0: the attention (orange) returns to symbols already read, as nothing tells it that they were. Blue is R,
# dark where it suppresses attention; in (b) it is 0.

# %%
right, looped = read.values()
chosen = [s for s in samples if right[s.id] == s.tokens and parsed(s.tokens, looped[s.id])["over-parsed"]]
if chosen:
    sample = min(chosen, key=lambda s: (len(looped[s.id]), len(s.tokens)))
    print("truth, with R:", " ".join(sample.tokens))
    print("R = 0:        ", " ".join(looped[sample.id]))
    shown = [
        trace(model, config, sample.image, tokens[:30])
        for model, tokens in zip(readers.values(), (sample.tokens, looped[sample.id]), strict=True)
    ]
    display(figure(shown))
else:
    print("no image is over-parsed only without R")

# %% [markdown]
# How often does the attention return? Both readers are fed the ground truth of twelve images. The measure is the share
# of attention, averaged over all steps, on cells that received more than half a step's attention before:


# %%
def on_read_cells(model: CoMER, sample: Sample) -> float:
    attention_Thw = trace(model, config, sample.image, sample.tokens).looked_Thw
    past_Thw = np.cumsum(attention_Thw, axis=0) - attention_Thw
    return float((attention_Thw * (past_Thw > 0.5)).sum((1, 2))[1:].mean())


for name, model in readers.items():
    print(f"{name:32}{np.mean([on_read_cells(model, s) for s in samples[:12]]):.2f}")

# %% [markdown]
# ## Two trainings: BTTR (baseline) and CoMER (Fusion)
# From the predictions of two runs of the same preset on CROHME 2014, if both exist: committed, or trained here
# (`make reproduce-table2 CROHME=… RECIPES='bttr-baseline comer-fusion'`).


# %%
def predictions(run: RunFolder) -> dict[str, tuple[str, ...]]:
    texts = read_predictions(run.path / "predictions/2014.zip")
    return {id_: tuple(tokens_of(text)) for id_, text in texts.items()}


def runs(recipe: str) -> dict[str, RunFolder]:
    """The run of seed 7 with predictions, by preset; a committed run takes precedence."""
    found = RunFolder.under(*(ROOT / "results" / kind / recipe for kind in ("runs", "reproduced")))
    return {run.preset: run for run in found if run.seed == 7 and "2014" in run.sets("predictions/*.zip")}


baseline, fusion = runs("bttr-baseline"), runs("comer-fusion")
both = [preset for preset in baseline if preset in fusion]
if archive.name != "crohme":
    print("comparing with CROHME's captions needs CROHME=path/to/data.zip")
elif not both:
    presets = {"bttr-baseline": sorted(baseline), "comer-fusion": sorted(fusion)}
    print(f"no preset has predictions of both recipes yet: {presets}")
for preset in both if archive.name == "crohme" else ():
    truth = {id_: tuple(tokens) for id_, tokens in archive.captions("2014").items()}
    trained = {"BTTR (baseline)": predictions(baseline[preset]), "CoMER (Fusion)": predictions(fusion[preset])}
    counts = compare(trained, truth)
    chart(counts, f"two trainings, preset {preset}: CROHME 2014, n = {len(truth)}")
    print(counts.T.to_string())
