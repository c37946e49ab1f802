"""The rate of a row on a test set with its interval over seeds and writers, from the verdicts in its run folders."""

from collections.abc import Callable, Sequence

import numpy as np

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.runs.folder import RunFolder
from hmerbench.evaluation.scoring.metrics import Expression
from hmerbench.evaluation.scoring.sampling import Estimate, Images, rate


def sampled_rate(
    runs: Sequence[RunFolder],
    split: str,
    right: Callable[[Expression], bool] = lambda row: row.errors == 0,
    counted: Callable[[Expression], bool] = lambda _: True,
) -> Estimate:
    """The share of the `counted` expressions that are `right`, in percent, of the seeds of a row. Raises UserError if
    they were scored on different expressions."""
    verdicts = [run.expressions(split) for run in runs]
    ids = [id_ for id_, row in verdicts[0].items() if counted(row)]
    for run, of_run in zip(runs, verdicts, strict=True):
        if of_run.keys() != verdicts[0].keys():
            raise UserError(
                f"{runs[0].path} and {run.path}: scored on different expressions of {split}; score them again"
            )
    return rate(np.array([[right(of_run[id_]) for id_ in ids] for of_run in verdicts]), Images(ids))
