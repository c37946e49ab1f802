"""What `hmerbench` does with files of predictions: score, compare and explain them. Results are printed."""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path
from typing import Any

from hmerbench.evaluation import InputError, csv_text, printable
from hmerbench.evaluation.datasets import TRAIN
from hmerbench.evaluation.lgeval import results_folder
from hmerbench.evaluation.scoring.conventions import convention
from hmerbench.evaluation.scoring.inputs import GroundTruth, matched, parse_captions, read_ground_truth
from hmerbench.evaluation.scoring.metrics import METRICS, WITHIN, Expression, interval_text
from hmerbench.evaluation.scoring.notes import left_out, unconverted
from hmerbench.evaluation.scoring.outcome import Outcome, in_process
from hmerbench.evaluation.scoring.score import Evaluation, Score, evaluate, read_training, told, unseen
from hmerbench.evaluation.stores import MAX_CAPTIONS, read_text
from hmerbench.evaluation.symlg import EDITIONS, PAPER, READINGS, Rules
from hmerbench.evaluation.symlg.formula import tokens_of


def score(
    predictions: Sequence[Path],
    truths: Sequence[str],
    *,
    tokenize: bool = False,
    captions: Path | None = None,
    as_json: bool = False,
    per_expression: Path | None = None,
    workdir: Path | None = None,
    named: str = "",
    search: str = "unknown",
    select: str = "unknown",
    rules: Rules = PAPER,
    training: str | None = None,
) -> None:
    """Score predictions as the CROHME scorer does; several sets one after another. With `training`, captions (if ""
    those of the archive's training set), a second line leaves out what has one of them."""
    if len(predictions) != len(truths):
        raise InputError(f"{len(predictions)} --predictions, but {len(truths)} --ground-truth: give one for each")
    if len(predictions) > 1 and (captions or per_expression or workdir or named):
        raise InputError("--captions, --per-expression, --workdir and --set are for one set at a time")
    check_target(per_expression)
    for path, truth in zip(predictions, truths, strict=True):
        name = named or Path(truth.rpartition(":")[2]).resolve().name
        signed = {"set": name, "search": search, "select": select}
        with _path_in_errors(workdir or tempfile.gettempdir()):
            result = evaluate(path, truth, signed, workdir, _captions(captions), rules, tokenize)
            second = None if training is None else _unseen(result, truth, training)
        _print_notes(path, result.notes)
        if as_json:
            print(json.dumps(asdict(result.score)))
            if second and second[0]:
                print(json.dumps(asdict(second[0])))
            elif second:
                print(told(*second), file=sys.stderr)
        else:
            _print_score(result.score)
            if second:
                print(told(*second))
        if per_expression:
            columns = [field.name for field in fields(Expression)]
            write_csv(per_expression, [asdict(row) for row in result.expressions], columns)


def _unseen(result: Evaluation, truth: str, training: str) -> tuple[Score | None, int]:
    archive, colon, _ = truth.rpartition(":")
    if not training and not colon:
        raise InputError(f"{truth}: has no training set; name the captions that were trained on with --training")
    if result.truth.captions is None:
        raise InputError(f"{truth}: has no captions, by which unseen expressions are told; add --captions")
    return unseen(result, read_training(training or f"{archive}:{TRAIN}"))


def print_comparison(
    first: Path,
    second: Path,
    ground_truth: str,
    *,
    tokenize: bool = False,
    as_json: bool = False,
    changed_to: Path | None = None,
) -> None:
    """Compare two systems on the same expressions: McNemar's test on ExpRate, a permutation test on error counts."""
    from hmerbench.evaluation.scoring.stats import compare_paired

    def run(raw: bool):
        """Both evaluations, each expression's id and errors in both, and what they come to."""
        results = [evaluate(path, ground_truth, raw=raw) for path in (first, second)]
        pairs = sorted((a.id, a.errors, b.errors) for a, b in zip(*(r.expressions for r in results), strict=True))
        ids, a, b = zip(*pairs, strict=True)
        return results, pairs, compare_paired(a, b, ids)

    check_target(changed_to)
    results, pairs, found = run(tokenize)
    for path, result in zip((first, second), results, strict=True):
        _print_notes(path, [*result.notes, *left_out(0, result.score.missing, result.score.n)])
    split = not tokenize and any("--tokenize" in note for result in results for note in result.notes)
    other = run(True)[-1] if split else None
    only_one = [pair for pair in pairs if (not pair[1]) != (not pair[2])]
    changed = [{"id": key, "errors_a": a, "errors_b": b, "right": "b" if a else "a"} for key, a, b in only_one]
    if changed_to:
        write_csv(changed_to, changed, ("id", "errors_a", "errors_b", "right"))
    if as_json:
        tokenized = {"with_tokenize": asdict(other)} if other else {}
        print(json.dumps(asdict(found) | {"changed": changed} | tokenized, indent=2))
        return
    for name, path, exact in (("A", first, found.exact_a), ("B", second, found.exact_b)):
        print(printable(f"{name} {exact} of {found.n} exact: {path}"))
    print(found)
    if other:
        print(f"with --tokenize, as some predictions are raw LaTeX: {other}")
    print(f"right only in A {found.only_a}, only in B {found.only_b}; McNemar p = {found.mcnemar_p:.4g}")
    means = f"mean errors {found.mean_errors_a:.3f} and {found.mean_errors_b:.3f}"
    print(f"{means}; paired permutation p = {found.permutation_p:.4g}")
    total, (key, a, b) = sum(a - b for _, a, b in pairs), max(pairs, key=lambda pair: abs(pair[1] - pair[2]))
    if abs(a - b) > max(abs(total), found.n):
        why = f"{key} alone differs by {abs(a - b):,} errors, all expressions together by {abs(total):,}"
        print(f"note: {why}: the means and their test follow single expressions", file=sys.stderr)
    if changed_to:
        print(printable(f"{changed_to}: {len(changed)} expressions that only one system gets right"))


def under_all_rules(
    texts: Mapping[str, str], truth: GroundTruth, spec: str, notes: list[str] | None = None
) -> dict[Rules, Outcome]:
    """Outcomes of predictions under every edition and reading, by each of which a `truth` made from captions (those of
    `spec`) is made again; why one of them cannot make it goes into `notes`."""
    found, graphs = dict[Rules, Outcome](), truth.graphs()
    for edition, reading in product(EDITIONS.values(), READINGS.values()):
        rules = Rules(reading, edition)
        try:
            found[rules] = in_process(texts, read_ground_truth(spec, rules).graphs() if truth.made else graphs, rules)
        except InputError as error:
            if notes is None:
                raise
            notes.append(f"{edition.name}, {reading.name}: {error}")
    return found


def editions(predictions: Path, ground_truth: str, *, tokenize: bool = False, as_json: bool = False) -> None:
    """Score the same predictions under every edition and reading of the official scorer."""
    texts, truth, stray = matched(predictions, ground_truth, tokenize)
    tokens = None
    if truth.captions is not None:
        predicted = {key: tokens_of(text) for key, text in texts.items()}
        tokens = sum(predicted.get(key) == caption for key, caption in truth.captions.items())
    refused = list[str]()
    found = under_all_rules(texts, truth, ground_truth, refused)
    rows: list[dict[str, Any]] = [
        {"edition": rules.edition.name, "reading": rules.reading.name} | outcome.counts | {"tokens": tokens}
        for rules, outcome in found.items()
    ]
    notes = [note] if (note := texts.note()) else []
    notes += left_out(stray, len(truth.symlg) - len(texts), len(truth.symlg))
    for reading in READINGS.values():
        if outcome := found.get(PAPER._replace(reading=reading)):
            notes += [f"{reading.name}: {told}" for told in unconverted(outcome.reasons, len(texts))]
    _print_notes(predictions, [*notes, *refused])
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{rows[0]['n']} expressions, in percent")
    headings = [*(metric.heading.replace("≤", "<=") for metric in WITHIN), "tokens"]
    print(f"{'edition':<12} {'reading':<12}" + "".join(f"{heading:>8}" for heading in headings))
    for row in rows:
        counts = [row[key] for key in (*(metric.count for metric in WITHIN), "tokens")]
        rates = ["–" if count is None else f"{100 * count / row['n']:.2f}" for count in counts]
        cells = "".join(f"{rate:>8}" for rate in rates)
        print(f"{row['edition']:<12} {row['reading']:<12}{cells}")
    if truth.made:
        print("the truth: made from the captions, by each edition and reading anew")
        return
    name, roots = convention(truth.graphs().values())
    shown = ", ".join(f"{count} roots: {kind}" for kind, count in roots.most_common())
    print(f"the truth: {name} ({shown or 'no root without index has two members'})")


def errors(
    predictions: Path, ground_truth: str, out: Path, *, tokenize: bool = False, captions: Path | None = None
) -> None:
    """Tabulate confused symbols and relations, and rates by structure and length."""
    from hmerbench.evaluation.scoring import analysis

    with tempfile.TemporaryDirectory() as folder, _path_in_errors(folder):
        result = evaluate(predictions, ground_truth, workdir=Path(folder), captions=_captions(captions), raw=tokenize)
        tables = analysis.tables(analysis.compared_pairs(result.expressions, Path(folder)))
    _print_notes(predictions, [*result.notes, *left_out(0, result.score.missing, result.score.n)])
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        write_csv(out / f"{name}.csv", rows, analysis.COLUMNS[name])
        print(printable(f"{out / name}.csv: {len(rows)} rows"))


def _print_notes(predictions: Path, notes: Sequence[str]) -> None:
    """Say on stderr what has an effect on a result that its user may not know of."""
    for note in notes:
        print(printable(f"note: {predictions}: {note}"), file=sys.stderr)


def _print_score(score: Score) -> None:
    """Print the signature line, then every rate with its Wilson interval."""
    print(score)
    rows = [
        *((metric.name, getattr(score, metric.count), score.n) for metric in METRICS if not metric.of),
        (r"any \limits", score.neutral, score.n),
        *((row.bucket, row.exact, row.n) for row in score.by_length or []),
    ]
    for name, count, n in rows:
        if count is not None:
            rate = f" {100 * count / n:6.2f} %  ({interval_text(count, n)})" if n else ""
            print(f"{name:>13} {count:>5} of {n:<5}{rate}")
    for metric in METRICS:
        if metric.of and (count := getattr(score, metric.count)) is not None:
            print(f"{metric.name:>13} {count:>5}          {getattr(score, metric.rate):6.2f} %")
    print(f"missing {score.missing}, not convertible {score.unconverted}; both count as empty graphs")
    print("95 % intervals over images, which ignore that writers differ")


def check_target(path: Path | None) -> None:
    """Raise InputError before any work is done for a file that cannot be written."""
    if path and path.exists() and not path.is_file():
        raise InputError(f"{path}: exists and is not a file; choose another name")
    if path and not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; make it")


def write_csv(path: Path, rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Write rows as one CSV file, whole or not at all."""
    with _path_in_errors(path):
        results_folder.replace(str(path), csv_text(columns, rows))


@contextmanager
def _path_in_errors(path: Path | str) -> Iterator[None]:
    """Add `path` to an OSError that names no file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _captions(path: Path | None) -> dict[str, list[str]] | None:
    return None if path is None else parse_captions(read_text(path, MAX_CAPTIONS), str(path))
