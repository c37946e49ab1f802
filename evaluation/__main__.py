"""`python -m hmerbench.evaluation`: score, compare and explain predictions."""

import gc
import json
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from hmerbench.evaluation import InputError, csv_text, run_program
from hmerbench.evaluation.lgeval import results_folder
from hmerbench.evaluation.scoring.inputs import matched, parse_captions, read_ground_truth, read_text
from hmerbench.evaluation.scoring.interval import interval_text
from hmerbench.evaluation.scoring.run_scripts import CASES, own_scripts, scripts, self_check
from hmerbench.evaluation.scoring.score import NO_FIELDS, Expression, Score, evaluate, left_out
from hmerbench.evaluation.symlg import EDITIONS, PAPER, READINGS, rules


def score(args: Namespace) -> None:
    """Score predictions as the CROHME scorer does; several sets one after another."""
    predictions, truths = args.predictions, args.ground_truth
    if len(predictions) != len(truths):
        raise InputError(f"{len(predictions)} --predictions, but {len(truths)} --ground-truth: give one for each")
    if len(predictions) > 1 and (args.captions or args.per_expression or args.workdir or args.set):
        raise InputError("--captions, --per-expression, --workdir and --set are for one set at a time")
    check_target(args.per_expression)
    chosen = rules(args.reading, args.edition)
    for path, truth in zip(predictions, truths, strict=True):
        name = args.set or Path(truth.rpartition(":")[2]).resolve().name
        named = {"set": name, "search": args.search, "select": args.select}
        with _path_in_errors(args.workdir or tempfile.gettempdir()):
            result = evaluate(path, truth, named, args.workdir, _captions(args.captions), chosen, args.tokenize)
        _print_notes(path, result.notes)
        if args.json:
            print(json.dumps(asdict(result.score)))
        else:
            _print_score(result.score)
        if args.per_expression:
            columns = [field.name for field in fields(Expression)]
            write_csv(args.per_expression, [asdict(row) for row in result.expressions], columns)


def compare(args: Namespace) -> None:
    """Compare two systems on the same expressions: McNemar's test on ExpRate, a permutation test on error counts."""
    from hmerbench.evaluation.scoring.stats import compare_paired

    check_target(args.changed)
    results = [evaluate(path, args.ground_truth, NO_FIELDS, split=args.tokenize) for path in (args.a, args.b)]
    for path, result in zip((args.a, args.b), results, strict=True):
        _print_notes(path, result.notes + left_out(0, result.score.missing, result.score.n))
    runs = [result.expressions for result in results]
    pairs = sorted((a.id, a.errors, b.errors) for a, b in zip(*runs, strict=True))
    result = compare_paired([a for _, a, _ in pairs], [b for _, _, b in pairs])
    changed = [
        {"id": key, "errors_a": a, "errors_b": b, "right": "b" if a else "a"}
        for key, a, b in pairs
        if (not a) != (not b)
    ]
    if args.changed:
        write_csv(args.changed, changed, ("id", "errors_a", "errors_b", "right"))
    if args.json:
        print(json.dumps(asdict(result) | {"changed": changed}, indent=2))
        return
    low, high = result.interval
    print(f"A {result.exact_a} of {result.n} exact, B {result.exact_b} of {result.n}")
    print(f"A - B = {result.difference:+.2f} points (95 %: {low:+.2f} to {high:+.2f})")
    print(f"right only in A {result.only_a}, only in B {result.only_b}; McNemar p = {result.mcnemar_p:.4g}")
    means = f"mean errors {result.mean_errors_a:.3f} and {result.mean_errors_b:.3f}"
    print(f"{means}; paired permutation p = {result.permutation_p:.4g}")
    total, (key, a, b) = sum(a - b for _, a, b in pairs), max(pairs, key=lambda pair: abs(pair[1] - pair[2]))
    if abs(a - b) > max(abs(total), result.n):
        why = f"{key} alone differs by {abs(a - b):,} errors, all expressions together by {abs(total):,}"
        print(f"note: {why}: the means and their test follow single expressions", file=sys.stderr)
    if args.changed:
        print(f"{args.changed}: {len(changed)} expressions that only one system gets right")


def editions(args: Namespace) -> None:
    """Score the same predictions under every edition and reading of the official scorer."""
    from hmerbench.evaluation.scoring.convention import table

    texts, truth, stray = matched(args.predictions, args.ground_truth, args.tokenize)
    rows = table(texts, truth)
    _print_notes(args.predictions, left_out(stray, len(truth.symlg) - len(texts), len(truth.symlg)))
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{rows[0]['n']} expressions, in percent")
    print(f"{'edition':<12} {'reading':<12} {'ExpRate':>7} {'<= 1':>7} {'<= 2':>7} {'<= 3':>7} {'tokens':>7}")
    for row in rows:
        counts = [row[key] for key in ("exact", "le1", "le2", "le3", "tokens")]
        rates = ["–" if count is None else f"{100 * count / row['n']:.2f}" for count in counts]
        cells = "".join(f"{rate:>8}" for rate in rates)
        print(f"{row['edition']:<12} {row['reading']:<12}{cells}")


def convention(args: Namespace) -> None:
    """Tell which edition of the converter made some .lg files, by the Inside relations of their roots."""
    from hmerbench.evaluation.scoring.convention import convention

    name, roots = convention(read_ground_truth(args.ground_truth).graphs().values())
    shown = ", ".join(f"{count} roots: {kind}" for kind, count in roots.most_common())
    print(f"{args.ground_truth}: {name} ({shown or 'no root without index has two members'})")


def errors(args: Namespace) -> None:
    """Tabulate confused symbols and relations, and rates by structure and length."""
    from hmerbench.evaluation.scoring import analysis

    with tempfile.TemporaryDirectory() as folder, _path_in_errors(folder):
        captions, workdir = _captions(args.captions), Path(folder)
        result = evaluate(args.predictions, args.ground_truth, NO_FIELDS, workdir, captions, split=args.tokenize)
        tables = analysis.tables(analysis.load(result.expressions, Path(folder)))
    _print_notes(args.predictions, result.notes + left_out(0, result.score.missing, result.score.n))
    args.out.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        write_csv(args.out / f"{name}.csv", rows, analysis.COLUMNS[name])
        print(f"{args.out / name}.csv: {len(rows)} rows")


def bench(args: Namespace) -> None:
    """Time the scoring of the three test sets, by the scripts and in one process."""
    from hmerbench.evaluation.scoring import bench

    print("\n".join(bench.run(args.archive)))


def doctor(_: Namespace) -> None:
    """Name the scorer in use and check it on ten expressions with known error counts."""
    failures = self_check()
    print(f"{'our own scripts' if own_scripts() else 'LGEVAL_BIN'}: {scripts()}")
    for failure in failures:
        print(f"wrong: {failure}")
    if failures:
        raise InputError(f"{scripts()}: fails its self-check; unset LGEVAL_BIN to score with our own scripts")
    print(f"all {len(CASES)} cases right")


def _parser() -> ArgumentParser:
    parser = ArgumentParser("python -m hmerbench.evaluation", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[Namespace], None]) -> Callable[..., object]:
        added = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        added.set_defaults(run=run)
        return added.add_argument

    predictions = {"type": Path, "required": True, "help": "folder of ID.txt, zip of them, .jsonl, .json, .csv or .tsv"}
    truth = {"help": "ARCHIVE.zip:SPLIT, FOLDER:SPLIT, or a folder of .lg"}
    captions = {"type": Path, "help": "ID<TAB>tokens lines, for a folder of .lg"}
    split: dict[str, Any] = {
        "action": "store_true",
        "help": r"split raw LaTeX into commands (\frac), escaped characters (\{) and single characters",
    }

    add = command(score)
    add("--predictions", action="append", **predictions | {"help": f"{predictions['help']}; once per set"})
    add("--ground-truth", action="append", required=True, **truth)
    add("--tokenize", **split)
    add("--captions", **captions)
    add("--json", action="store_true", help="print the score as JSON, one line per set")
    add("--per-expression", type=Path, help="write one CSV row per expression")
    add("--workdir", type=Path, help="keep the scorer's files here")
    add("--set", default="", help="name of the set in the signature (default: SPLIT or the folder's name)")
    add("--search", default="unknown", help="search method to name in the signature")
    add("--select", default="unknown", help="checkpoint selection to name in the signature")
    add("--reading", default=PAPER.reading.name, help=f"how LaTeX is parsed: {', '.join(READINGS)} (%(default)s)")
    add("--edition", default=PAPER.edition.name, help=f"versions of the tools: {', '.join(EDITIONS)} (%(default)s)")

    add = command(compare)
    add("a", type=Path, help="predictions of system A")
    add("b", type=Path, help="predictions of system B")
    add("--ground-truth", required=True, **truth)
    add("--tokenize", **split)
    add("--json", action="store_true", help="print the comparison as JSON")
    add("--changed", type=Path, help="write the expressions that only one system gets right as CSV")

    add = command(editions)
    add("--predictions", **predictions)
    add("--ground-truth", required=True, **truth)
    add("--tokenize", **split)
    add("--json", action="store_true", help="print the rows as JSON")

    add = command(convention)
    add("ground_truth", **truth)

    add = command(errors)
    add("--predictions", **predictions)
    add("--ground-truth", required=True, **truth)
    add("--tokenize", **split)
    add("--out", type=Path, required=True, help="folder for the tables (CSV)")
    add("--captions", **captions)

    add = command(bench)
    add("archive", type=Path, help="CROHME's data.zip")

    command(doctor)
    return parser


def _print_notes(predictions: Path, notes: Sequence[str]) -> None:
    """Say on stderr what has an effect on a result that its user may not know of."""
    for note in notes:
        print(f"note: {predictions}: {note}", file=sys.stderr)


def _print_score(score: Score) -> None:
    """Print the signature line, then every rate with its Wilson interval."""
    print(score)
    rows = [
        ("exact", score.exact, score.n),
        ("<= 1 error", score.le1, score.n),
        ("<= 2 errors", score.le2, score.n),
        ("<= 3 errors", score.le3, score.n),
        ("structure", score.structure, score.n),
        ("tokens exact", score.token_exact, score.n),
        *((row.bucket, row.exact, row.n) for row in score.by_length or []),
    ]
    for name, count, n in rows:
        if count is not None:
            rate = f" {100 * count / n:6.2f} %  ({interval_text(count, n)})" if n else ""
            print(f"{name:>13} {count:>5} of {n:<5}{rate}")
    print(f"missing {score.missing}, not convertible {score.unconverted}; both count as empty graphs")


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
    return None if path is None else parse_captions(read_text(path), str(path))


def main() -> int:
    """Run the command line."""
    gc.disable()  # graphs hold no reference cycles, and searching for them takes a tenth of the time
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal's encoding may lack "–"
    args = _parser().parse_args()
    return run_program(lambda: args.run(args))


if __name__ == "__main__":
    sys.exit(main())
