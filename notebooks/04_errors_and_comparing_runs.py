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
# # Errors, and comparing two runs
#
# Two systems read the same images and are scored by the LgEval-compatible scripts. Is one better, or is it chance?
# Where do they differ? Which symbols do they confuse? Here the systems are the committed network of the preset `hour`
# with the joint search, and with a left-to-right beam search only; any two folders of predictions can be compared
# (`python -m evaluation compare`).
#
# With `CROHME=path/to/data.zip` the images are handwritten; without it they come from the embedded set, whose numbers
# say nothing about CROHME.

# %%
import json
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch

from benchmarks.config import load
from benchmarks.data.archive import open_archive
from benchmarks.data.samples import evenly
from benchmarks.data.synthetic import embedded
from benchmarks.recognition.predict import recognize, write_predictions
from benchmarks.runs.folder import RunFolder
from benchmarks.score import score
from evaluation.scoring.stats import compare_paired
from models.weights import load_weights

ROOT = next(folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "pyproject.toml").exists())
RUN = ROOT / "results/reproduced/comer-fusion/hour-seed7"
work = Path(tempfile.mkdtemp())
if crohme := os.environ.get("CROHME"):
    archive, split, count = open_archive(ROOT / crohme), "2014", 150
else:
    archive, split, count = open_archive(embedded(work / "data.zip", train=1, test=40)), "test", 40
samples = evenly(archive.samples(split), count)
print(f"{archive.edition}: {len(samples)} images of {split}")

# %% [markdown]
# ## Two systems
# The same weights with two searches. Each writes a run folder: predictions, scores, error tables.

# %%
config = load(RUN / "config.yaml")
model = load_weights(RUN / "best.safetensors", config.model).eval()
systems = {"joint": "both", "left to right": "l2r"}
read = {}
for name, direction in systems.items():
    system = config.changed({"search.direction": direction, "search.limit": count})
    read[name] = recognize(model, system, samples, torch.device("cpu"), split)
    run = RunFolder(work / name, system)
    write_predictions(run, split, read[name], model.vocabulary)
    print(f"{name:<14}{score(run, archive, [split])[split]}")

# %% [markdown]
# ## Is the difference real?
# Both read the *same* images, so only the disagreements are informative. McNemar's test asks whether the expressions
# that only one system got right are split like fair coin tosses; the permutation test asks the same about the numbers
# of errors. The interval is that of the difference. A p-value above 0.05 means that these images cannot tell the two
# apart, **not** that they are equally good.

# %%
rows = {name: pd.read_csv(work / name / f"scores/{split}.csv").set_index("id") for name in systems}
first, second = rows.values()
result = compare_paired(first["errors"].tolist(), second.loc[first.index, "errors"].tolist())
low, high = result.interval
print(f"right: {result.exact_a} and {result.exact_b} of {result.n}; ", end="")
print(f"only the first {result.only_a}, only the second {result.only_b}")
print(f"difference {result.difference:+.2f} points ({low:+.2f} to {high:+.2f}), McNemar p = {result.mcnemar_p:.3g}")
print(f"errors per expression: {result.mean_errors_a:.2f} and {result.mean_errors_b:.2f}, ", end="")
print(f"permutation p = {result.permutation_p:.3g}")

# %% [markdown]
# ## Where do they differ?
# First the expressions that only one system got right, then others with different numbers of errors.

# %%
one_right = [s for s in samples if first.loc[s.id, "exact"] != second.loc[s.id, "exact"]]
others = [s for s in samples if s not in one_right and first.loc[s.id, "errors"] != second.loc[s.id, "errors"]]
print(f"{len(one_right)} expressions are right in one system only, {len(others)} others differ in their errors")
for sample in (evenly(one_right, 4) + evenly(others, 2))[:4]:
    figure, axis = plt.subplots(figsize=(6, 1.2))
    axis.imshow(255 - sample.image, cmap="gray")
    axis.axis("off")
    plt.show()
    print("truth".ljust(15), " ".join(sample.tokens))
    for name in systems:
        print(name.ljust(15), " ".join(read[name][sample.id][0]), f"({rows[name].loc[sample.id, 'errors']} errors)")

# %% [markdown]
# ## On what kind of expression?
# ExpRate by structure and by length, from `errors/<set>.json`. Mind n: a group of ten says next to nothing.

# %%
errors = {name: json.loads((work / name / f"errors/{split}.json").read_text()) for name in systems}


def side_by_side(table: str, key: str) -> pd.DataFrame:
    """n and ExpRate of every group, one column per system."""
    frames = {name: pd.DataFrame(errors[name][table]).set_index(key) for name in systems}
    return pd.DataFrame(
        {"n": next(iter(frames.values()))["n"]} | {name: frame["exprate"] for name, frame in frames.items()}
    )


side_by_side("structure", "structure")

# %%
side_by_side("length", "bucket")

# %% [markdown]
# ## Which symbols are confused?
# `aligned` counts the cases with correct structure, in which only the symbol is wrong.

# %%
for name in systems:
    confused = pd.DataFrame(errors[name]["symbols"], columns=["truth", "prediction", "count", "aligned", "expressions"])
    confused = confused[confused["aligned"] > 0]
    print(f"{name}\n{confused.head(8).to_string(index=False)}\n")

# %% [markdown]
# ## The committed run, on all of CROHME
# The run folder contains the same tables, so they can be read without CROHME.

# %%
rates = {}
for path in sorted((RUN / "errors").glob("*.json")):
    table = pd.DataFrame(json.loads(path.read_text())["structure"])
    rates[path.stem] = table.set_index("structure")["exprate"]
pd.DataFrame(rates)
