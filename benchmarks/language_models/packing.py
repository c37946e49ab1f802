"""Reproduced language models: run folders copied to results/reproduced/ for the repository, without their weights."""

from pathlib import Path

from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.language_models.run import LanguageRun
from hmerbench.benchmarks.language_models.settings import PARTS
from hmerbench.benchmarks.runs.packing import copy_part, packed, replaced


def pack(folder: Path) -> Path:
    """Copy a tested run on the Penn Treebank to reproduced/<recipe>/ptb-seed<k> of its workspace; return that path.

    An earlier copy is replaced as a whole. Raises UserError for a run that is not finished or on another text.
    """
    run = LanguageRun(folder)
    if (name := run.settings.text.name) != "ptb":
        raise UserError(f"{folder}: it was trained on {name}; only runs on the Penn Treebank can be packed")
    if not run.finished:
        raise UserError(f"{folder}: it is not trained and tested yet; `hmerbench reproduce-lm` continues it")
    target = packed(folder, run.settings.recipe, f"ptb-seed{run.settings.seed}")
    with replaced(target) as fresh:
        for part in PARTS:
            copy_part(folder / part, fresh / part)
    return target
