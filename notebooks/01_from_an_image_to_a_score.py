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
# # From an image to a scored expression
#
# A trained network reads an image, the approximate joint search writes LaTeX, the LaTeX becomes a symLG graph, and the
# graph is compared with the truth as the official scorer compares them. `CROHME=path/to/data.zip` shows handwriting;
# without it the embedded set's typeset and distorted expressions are read, by a network that never saw any.

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from benchmarks.config import load
from benchmarks.data.archive import open_archive
from benchmarks.data.samples import evenly
from benchmarks.data.synthetic import embedded
from benchmarks.recognition.predict import recognize
from evaluation import symlg
from evaluation.lgeval import label_graph, metrics
from models import Vocabulary
from models.weights import load_weights

ROOT = next(folder for folder in [Path.cwd(), *Path.cwd().parents] if (folder / "pyproject.toml").exists())
RUN = ROOT / "results/reproduced/comer-fusion/hour-seed7"
if crohme := os.environ.get("CROHME"):
    archive, split = open_archive(ROOT / crohme), "2014"
else:
    archive = open_archive(embedded(Path(tempfile.mkdtemp()) / "data.zip", train=1, test=40))
    split = "test"
print(archive.edition)

# %% [markdown]
# ## The network
# A run folder holds the configuration and the selected weights.

# %%
config = load(RUN / "config.yaml")
model = load_weights(RUN / "best.safetensors", config.model).eval()
print(f"{config.recipe}, preset {config.preset}: {sum(p.numel() for p in model.parameters()):,} parameters")

# %% [markdown]
# ## Recognition
# Both directions are searched, each rates what the other found, and the best sum wins.

# %%
samples = evenly(archive.samples(split), 6)
found = recognize(model, config, samples, torch.device("cpu"), split)
figure, axes = plt.subplots(len(samples), 1, figsize=(7, 1.6 * len(samples)))
for axis, sample in zip(axes, samples, strict=True):
    axis.imshow(255 - sample.image, cmap="gray")
    axis.set_title(" ".join(found[sample.id][0]), fontsize=9, loc="left", parse_math=False)
    axis.axis("off")
figure.tight_layout()

# %% [markdown]
# The best hypotheses of one image, with their scores (log-probability per token, forward plus reverse):

# %%
vocabulary = Vocabulary()
sample = samples[2]
print("truth:".ljust(15), " ".join(sample.tokens))
for hypothesis in found[sample.id][1][:5]:
    print(f"{hypothesis.score:8.3f}  {hypothesis.direction}  ", " ".join(vocabulary.decode(hypothesis.ids)))

# %% [markdown]
# ## symLG and the score
# Symbols are identified by their path from the first one; a wrong label costs one error, a misplaced symbol more.
# ExpRate counts the expressions without any.

# %%
for sample in samples:
    truth = label_graph.read(archive.ground_truth(split)[sample.id])
    try:
        errors = metrics.compare(symlg.from_latex(" ".join(found[sample.id][0])), truth).metrics["D_B"]
        print(f"{errors:3d} errors  {' '.join(found[sample.id][0])}")
    except symlg.Unconverted as reason:
        print(f"not LaTeX: {reason}")

# %%
print(symlg.write(symlg.from_latex(" ".join(samples[2].tokens)), samples[2].id))
