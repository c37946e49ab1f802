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
# A trained network encodes an image, the approximate joint search decodes LaTeX, the LaTeX is converted to a symLG
# graph, and the graph is compared with the ground truth as the official scorer does. With `CROHME=path/to/data.zip`
# the images are handwritten; without it they are typeset, distorted expressions of the embedded set, on which the
# network was not trained.

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
# Both directions are searched, each rescores the hypotheses of the other, and the best sum of scores wins.

# %%
samples = evenly(archive.samples(split), 6)
results = recognize(model, config, samples, torch.device("cpu"), split)
figure, axes = plt.subplots(len(samples), 1, figsize=(7, 1.6 * len(samples)))
for axis, sample in zip(axes, samples, strict=True):
    axis.imshow(255 - sample.image, cmap="gray")
    axis.set_title(" ".join(results[sample.id][0]), fontsize=9, loc="left", parse_math=False)
    axis.axis("off")
figure.tight_layout()

# %% [markdown]
# The best hypotheses of one image, with their scores (log-probability per token, forward plus reverse):

# %%
vocabulary = Vocabulary()
sample = samples[2]
print("truth:".ljust(15), " ".join(sample.tokens))
for hypothesis in results[sample.id][1][:5]:
    print(f"{hypothesis.score:8.3f}  {hypothesis.direction}  ", " ".join(vocabulary.decode(hypothesis.ids)))

# %% [markdown]
# ## symLG and the score
# Symbols are identified by their path from the first one: a wrong label is one error, a misplaced symbol is several.
# ExpRate is the share of expressions without errors.

# %%
for sample in samples:
    truth = label_graph.read(archive.ground_truth(split)[sample.id])
    try:
        latex = " ".join(results[sample.id][0])
        errors = metrics.compare(symlg.from_latex(latex), truth).metrics["D_B"]
        print(f"{errors:3d} errors  {latex}")
    except symlg.Unconverted as reason:
        print(f"not LaTeX: {reason}")

# %%
print(symlg.write(symlg.from_latex(" ".join(samples[2].tokens)), samples[2].id))
