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
# CoMER's attention refinement module (ARM) keeps count of past attention and subtracts a refinement term R from the
# energies where the network has been. Here the same images are read with and without it, in two ways:
#
# 1. **R set to 0 at test time**: the same weights, the refinement switched off. The network was trained with R, so this
#    shows how much it leans on R, *not* what a network trained without would do.
# 2. **Two trainings**: BTTR (baseline) against CoMER (Fusion), where runs of both exist.
#
# `CROHME=path/to/data.zip` shows handwriting; without it the embedded set is read, whose numbers say nothing of CROHME.

# %%
import copy
import os
import tempfile
import zipfile
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
# Prediction and truth are aligned at least cost (a symbol put in, left out or mistaken costs 1). Tokens that nothing is
# drawn for, braces and scripts, are left out before. What is put in was *over-parsed*, what is left out *under-parsed*;
# a mistaken symbol was read once, as it should be, and says nothing of coverage.


# %%
def parsed(truth: tuple[str, ...], read: tuple[str, ...]) -> Counter[str]:
    """How many symbols were over-parsed, under-parsed and mistaken (Levenshtein alignment; mistakes preferred)."""
    truth, read = (tuple(t for t in tokens if t not in INKLESS) for tokens in (truth, read))
    row = [(j, j, 0) for j in range(len(read) + 1)]  # (cost, over-parsed, under-parsed) of truth[:i] with read[:j]
    for i, symbol in enumerate(truth, 1):
        before, row = row, [(i, 0, i)]
        for j, other in enumerate(read, 1):
            paired = (before[j - 1][0] + (symbol != other), *before[j - 1][1:])
            left_out = (before[j][0] + 1, before[j][1], before[j][2] + 1)
            put_in = (row[-1][0] + 1, row[-1][1] + 1, row[-1][2])
            row.append(min(paired, left_out, put_in, key=lambda step: (step[0], step[1] + step[2])))
    cost, over, under = row[-1]
    return Counter({"over-parsed": over, "under-parsed": under, "mistaken": cost - over - under})


print(parsed(("x", "^", "{", "2", "}", "+", "x"), ("x", "^", "{", "2", "}", "+", "x", "+", "x")))


# %%
def compare(read: dict[str, dict[str, tuple[str, ...]]], truth: dict[str, tuple[str, ...]]) -> pd.DataFrame:
    """A row for each reader: how many of the images it has each fault on, the symbols concerned, what is right."""
    rows = {}
    for name, found in read.items():
        faults = [parsed(truth[id_], found.get(id_, ())) for id_ in truth]
        images = {f"images {kind}": sum(f[kind] > 0 for f in faults) for kind in faults[0]}
        symbols = {f"symbols {kind}": sum(f[kind] for f in faults) for kind in faults[0]}
        rows[name] = {**images, **symbols, "images right": sum(found.get(id_) == truth[id_] for id_ in truth)}
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
# R leaves a batch normalization; with its scale and shift at 0, R is 0 everywhere. Reading stops after 60 tokens, as
# without R it often would not stop by itself: counts of symbols are therefore too low, counts of images are not.

# %%
config = load(RUN / "config.yaml").changed({"search.max_len": 60})
with_arm = load_weights(RUN / "best.safetensors", config.model).eval()
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
# The shortest reading that is right with R and over-parsed without. Above (a) with R, below (b) the same weights with
# R = 0: the attention (orange) goes back to what has been read, as nothing says that it was. Blue is R, dark where it
# suppresses; in (b) it is 0.

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
    print("no image is over-parsed without R only")

# %% [markdown]
# How often does the attention go back? Both readers are made to read the truth of twelve images; counted is the share
# of attention, mean of all steps, on cells that had more than half a step's attention before:


# %%
def on_read_cells(model: CoMER, sample: Sample) -> float:
    looked = trace(model, config, sample.image, sample.tokens).looked_Thw
    before = np.cumsum(looked, axis=0) - looked
    return float((looked * (before > 0.5)).sum((1, 2))[1:].mean())


for name, model in readers.items():
    print(f"{name:32}{np.mean([on_read_cells(model, s) for s in samples[:12]]):.2f}")

# %% [markdown]
# ## Two trainings: BTTR (baseline) and CoMER (Fusion)
# Read off the predictions of two runs of the same preset on CROHME 2014, where both are there: committed, or trained
# here (`make reproduce-table2 CROHME=… RECIPES='bttr-baseline comer-fusion'`).


# %%
def predictions(run: Path) -> dict[str, tuple[str, ...]]:
    with zipfile.ZipFile(run / "predictions/2014.zip") as texts:
        lines = {Path(name).stem: texts.read(name).decode().split("\n", 1)[1] for name in texts.namelist()}
    return {id_: tuple(line.strip("$").split()) for id_, line in lines.items()}


def runs(recipe: str) -> dict[str, Path]:
    """The run of seed 7 with predictions, of every preset, committed ones first."""
    found = [
        p.parents[1]
        for kind in ("runs", "reproduced")
        for p in sorted(ROOT.glob(f"results/{kind}/{recipe}/*-seed7*/predictions/2014.zip"))
    ]
    return {load(run / "config.yaml").preset: run for run in found}


baseline, fusion = runs("bttr-baseline"), runs("comer-fusion")
both = [preset for preset in baseline if preset in fusion]
if archive.name != "crohme":
    print("CROHME is not given, so its captions are not here: nothing to compare with (CROHME=path/to/data.zip)")
elif not both:
    have = {"bttr-baseline": sorted(baseline), "comer-fusion": sorted(fusion)}
    print(f"no preset has predictions of both recipes yet; presets that have one: {have}")
for preset in both if archive.name == "crohme" else ():
    truth = {id_: tuple(tokens) for id_, tokens in archive.captions("2014").items()}
    trained = {"BTTR (baseline)": predictions(baseline[preset]), "CoMER (Fusion)": predictions(fusion[preset])}
    counts = compare(trained, truth)
    chart(counts, f"two trainings, preset {preset}: CROHME 2014, n = {len(truth)}")
    print(counts.T.to_string())
