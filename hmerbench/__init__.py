"""A reproducibility benchmark suite for handwritten mathematical expression recognition.

    import hmerbench

    result = hmerbench.score("predictions.tsv", "data.zip:2014")    # the paper's scorer; needs no torch
    print(result.score, result.expressions[0].errors)
    print(hmerbench.compare("a.tsv", "b.tsv", "data.zip:2014").interval)
    print(hmerbench.load()("formula.png").latex)                    # a trained network

Other names may change with any version. hmerbench/README.md says more.
"""

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmerbench.benchmarks.recognition.recognizer import Recognizer
    from hmerbench.evaluation.scoring.score import Evaluation
    from hmerbench.evaluation.scoring.stats import PairedComparison

if not (Path(__file__).parent / "evaluation").is_dir():
    raise ImportError(
        "hmerbench: its links to the folders beside it were unpacked as text files; clone with "
        "`git clone -c core.symlinks=true` (on Windows in developer mode, or under WSL)"
    )

__all__ = ["compare", "load", "score"]

File = str | PathLike[str]
Latex = Mapping[str, str]  # LaTeX in tokens, separated by blanks, by the expression's id


def score(
    predictions: File | Latex,
    ground_truth: File | Latex,
    *,
    tokenize: bool = False,
    reading: str = "pandoc-1.19",
    edition: str = "crohme2019",
    name: str = "",
) -> "Evaluation":
    r"""Score predictions as the CROHME scorer does: ExpRate, the share of expressions without any error, and more.

    `predictions`: LaTeX by id, or a file or folder in a form that `hmerbench score` takes. `ground_truth`: LaTeX by id,
    `ARCHIVE.zip:SPLIT`, `FOLDER:SPLIT`, or a folder of .lg. `tokenize` splits raw LaTeX (`\frac{1}{2}`) into tokens
    first, also of a ground truth given by id. `reading` and `edition` choose the official tools' versions, by default
    the paper's; `name` is the set's in the signature, by default that of the split. Raises
    `hmerbench.evaluation.InputError`, a ValueError of one line.

    >>> score({"a": "x ^ 2", "b": "1"}, {"a": "x ^ { 2 }", "b": "7"}).score.exprate
    50.0
    """
    from hmerbench.evaluation import InputError
    from hmerbench.evaluation.scoring.inputs import GroundTruth, composed, from_captions
    from hmerbench.evaluation.scoring.score import evaluate
    from hmerbench.evaluation.symlg import rules
    from hmerbench.evaluation.symlg.formula import tokenize as tokens_in

    chosen = rules(reading, edition)
    for what, given in (("predictions", predictions), ("ground truth", ground_truth)):
        if isinstance(given, Mapping):
            _check(given, what)
    if isinstance(ground_truth, Mapping):
        split = {key: " ".join(tokens_in(latex)) if tokenize else latex for key, latex in ground_truth.items()}
        captions = {composed(key): latex.split() for key, latex in split.items()}
        if len(captions) < len(ground_truth):
            raise InputError("ground truth: an id occurs twice, its accents composed and decomposed; keep one")
        truth = GroundTruth(dict(from_captions(captions, "ground truth", chosen)), captions)
    else:
        truth = fspath(ground_truth)
        name = name or Path(truth.rpartition(":")[2]).resolve().name
    given = predictions if isinstance(predictions, Mapping) else Path(predictions)
    return evaluate(given, truth, {"set": name or "unknown"}, rules=chosen, raw=tokenize)


def compare(
    first: File | Latex, second: File | Latex, ground_truth: File | Latex, *, tokenize: bool = False
) -> "PairedComparison":
    """Compare two systems on the same expressions: the first rate minus the second with its interval, McNemar's test
    on which is right, a permutation test on error counts. Arguments and errors are those of `score`.

    >>> compare({"a": "x"}, {"a": "y"}, {"a": "x"}).difference
    100.0
    """
    from hmerbench.evaluation.scoring.stats import compare_paired

    results = [score(given, ground_truth, tokenize=tokenize).expressions for given in (first, second)]
    a, b = ([row.errors for row in rows] for rows in results)
    return compare_paired(a, b, [row.id for row in results[0]])


def _check(latex: Mapping[Any, Any], what: str) -> None:
    """Raise InputError for what is not text by id."""
    from hmerbench.evaluation import InputError

    if not latex:
        raise InputError(f"{what}: holds no LaTeX")
    for key, text in latex.items():
        if not (isinstance(key, str) and isinstance(text, str)):
            raise InputError(f'{what}: {key!r}: {text!r}: an id and its LaTeX must be text; for no reading give ""')


def load(weights: File | None = None, *, fast: bool = False) -> "Recognizer":
    """Load a trained network: call it with a picture of one expression (a path, bytes, an array, a PIL image), or with
    a folder or a list of them. With `fast`, the default is a smaller network.

    `weights`: a run folder, its weights file, or a .ckpt of CoMER's authors. By default the best committed run: in a
    checkout it is at hand; elsewhere it is fetched once from HMERBENCH_WEIGHTS (an address or a folder like the suite's
    results/reproduced) and verified. Needs `hmerbench[recognize]`. Raises UserError or CheckpointError, of one line.
    """
    try:
        from hmerbench.benchmarks.recognition.recognizer import Recognizer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("cv2", "PIL", "safetensors", "torch"):
            raise
        raise ImportError(f"{error}, which networks need: pip install 'hmerbench[recognize]'") from None
    return Recognizer.load(None if weights is None else fspath(weights), fast)
