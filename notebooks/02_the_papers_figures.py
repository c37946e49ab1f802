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
# # The paper's figures
#
# All figures are drawn from what is committed under `results/`: the paper's reported numbers beside runs of this suite.
# No archive and no network is needed. `make figures` writes the same figures to `results/figures/` as PDF, SVG and PNG;
# those without data are listed at the end.

# %%
from pathlib import Path

import pandas as pd
from IPython.display import Image, display

from benchmarks.report import tables
from benchmarks.report.figures import write as figures
from benchmarks.report.paper import model_name, reference

ROOT = next(folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "pyproject.toml").exists())
RESULTS = ROOT / "results"
runs = figures.read_runs(RESULTS / "reproduced")
with figures.style():
    drawn = dict(figures.draw(RESULTS))
    pictures = {name: figures.rendered(plot, "png") for name, plot in drawn.items() if not isinstance(plot, str)}


def show(prefix: str) -> None:
    """Display the figures whose names start with `prefix`."""
    for name, picture in pictures.items():
        if name.startswith(prefix):
            display(Image(picture, width=480))


print(f"{len(runs)} runs, {len(pictures)} figures")

# %% [markdown]
# ## Table 1 as a forest plot
# One row per model, one marker per rate with its 95 % interval. Open markers are the paper's, filled ones are
# reproduced; a black stroke is a seed. Mind the intervals: with 986 expressions, a difference of less than about four
# points can be due to chance. All presets except `paper` and `gpu` train smaller networks, which are **not** meant to
# match the paper's rows.

# %%
show("table1")
tables.short(tables.committed(RESULTS)["table1"])

# %% [markdown]
# ## Fig. 3: long expressions are where coverage counts
# ExpRate by the number of tokens in the ground truth. Look at the distance between the lines on the right: without
# coverage (BTTR) the rate drops to almost zero, with coverage (CoMER) it drops less. The intervals there are wide, as
# only 51 of 986 expressions have more than 40 tokens. Open markers in the lower panels repeat the paper's rates.

# %%
show("fig3")
lengths = {"reported " + model: rates for model, rates in reference()["fig3"]["rates"].items()}
for run in (run for run in runs if "2014" in run.scores):
    rates = [row.exprate for row in run.scores["2014"].by_length]
    lengths[f"{model_name(run.recipe)}, {run.preset}, seed {run.seed}"] = rates
pd.DataFrame.from_dict(lengths, orient="index", columns=reference()["fig3"]["buckets"])

# %% [markdown]
# ## Fig. 4: where the network looks
# Attention of the last layer over the image, step by step, and the refinement term that suppresses attention to regions
# already read. This figure needs an image and the weights, so it has a command of its own,
# `python -m benchmarks attention`.

# %%
if (fig4 := RESULTS / "figures/fig4-attention.png").exists():
    display(Image(filename=fig4, width=480))
else:
    print("not drawn yet: python -m benchmarks attention")

# %% [markdown]
# ## Training
# Loss (both directions; where the preset uses label smoothing, it does not approach zero), learning rate and throughput
# by epoch. In presets that start with short expressions, images per second drop over the first epochs.

# %%
show("training")

# %% [markdown]
# ## What goes wrong
# *Symbols*: confused labels in expressions with correct structure, over all sets (with a wrong structure, the scorer's
# paths shift, and every symbol after the error counts as wrong). *Relations*: the share of expressions in which a
# relation is missed or invented at least once; a prediction that ends early misses all that follow. *Structure*,
# *length*: ExpRate of the expressions that contain a structure (possibly several) or have a certain length.

# %%
show("errors")

# %% [markdown]
# ## Cost
# ExpRate against core-minutes of training, and the growth of search time: slope 1 is linear.

# %%
show("exprate")
show("speed")
for name, reason in drawn.items():
    if isinstance(reason, str):
        print(f"{name}: not drawn, {reason}".replace(str(ROOT) + "/", ""))
