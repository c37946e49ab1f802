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
# All are drawn from what is committed under `results/`: numbers the paper reports, and runs of this suite beside them.
# No archive and no network is needed. `make figures` writes the same as PDF, SVG and PNG to `results/figures/`; what is
# missing there for want of data is named at the end.

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
    pictures = {name: figures.rendered(it, "png") for name, it in drawn.items() if not isinstance(it, str)}


def show(start: str) -> None:
    """All figures whose name begins so."""
    for name, picture in pictures.items():
        if name.startswith(start):
            display(Image(picture, width=480))


print(f"{len(runs)} runs, {len(pictures)} figures")

# %% [markdown]
# ## Table 1, as a forest
# One row per model, one marker per rate with its 95 % interval. Open markers are the paper's, filled ones were run
# here; a black stroke is a seed. Mind the intervals: with 986 expressions two rates less than about four points apart
# can be chance. A preset other than `paper` and `fast` is a smaller network and **not** meant to meet the paper's row.

# %%
show("table1")
tables.short(tables.committed(RESULTS)["table1"])

# %% [markdown]
# ## Fig. 3: long expressions are where coverage counts
# ExpRate by the number of tokens in the true caption. What to look for is the distance between the lines at the right:
# without coverage (BTTR) the rate falls towards nothing, with it (CoMER) less so. The intervals there are wide, as only
# 51 of 986 expressions have more than 40 tokens. In the lower panels the open markers are the paper's again.

# %%
show("fig3")
lengths = {"reported " + model: rates for model, rates in reference()["fig3"]["rates"].items()}
for run in runs:
    rates = [row.exprate for row in run.scores["2014"].by_length]
    lengths[f"{model_name(run.recipe)}, {run.preset}, seed {run.seed}"] = rates
pd.DataFrame.from_dict(lengths, orient="index", columns=reference()["fig3"]["buckets"])

# %% [markdown]
# ## Fig. 4: where the network looks
# Attention of the last layer over the image, step by step, and the refinement term that keeps it from going back. It
# needs an image and the weights, so it is drawn by a command of its own, `python -m benchmarks attention`.

# %%
if (fig4 := RESULTS / "figures/fig4-attention.png").exists():
    display(Image(filename=fig4, width=480))
else:
    print("not drawn yet: python -m benchmarks attention")

# %% [markdown]
# ## Training
# Loss (both directions, with label smoothing where the preset has it, so that it does not go to zero), learning rate
# and throughput of every epoch. Images a second fall in the first epochs of a preset that begins with short
# expressions.

# %%
show("training")

# %% [markdown]
# ## What goes wrong
# *Symbols*: mistaken labels in expressions whose structure is right, over all sets (where it is not, the scorer's paths
# shift, and every symbol after the fault counts as wrong). *Relations*: in how many expressions at least one is missed
# or invented; a prediction that is too short misses all that follow. *Structure*, *length*: ExpRate of the expressions
# that contain a structure (one may contain several) or have a length.

# %%
show("errors")

# %% [markdown]
# ## Cost
# ExpRate against the core-minutes of training, and how a search's time grows: slope 1 is linear growth.

# %%
show("exprate")
show("speed")
for name, it in drawn.items():
    if isinstance(it, str):
        print(f"{name}: not drawn, {it}".replace(str(ROOT) + "/", ""))
