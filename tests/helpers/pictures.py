"""A formula that is drawn, not photographed."""

import numpy as np
from PIL import Image

from hmerbench.benchmarks.data.synthetic import drawing

TOKENS = list("x^{2}+y^{2}=z^{2}")
LATEX = " ".join(TOKENS)
INK = drawing(TOKENS, np.random.default_rng(1))  # white on black, as CROHME's images
PAPER = Image.fromarray(255 - INK)
