"""One thread a test process: several run side by side, and sums come out the same on every machine."""

import os

from benchmarks.libraries import settle

settle()
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HMERBENCH_RESULTS"] = "results"  # of the folder a test works in, not the project's
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import torch  # noqa: E402

from tests.helpers.database import postgres  # noqa: E402, F401  (a fixture)

torch.set_num_threads(1)
