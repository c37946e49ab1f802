"""`python -m evaluation`: score, compare and explain predictions."""

import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from dataclasses import fields as fields_of
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from evaluation import InputError
from evaluation.scoring.inputs import parse_captions, read_ground_truth, read_text
from evaluation.scoring.run_scripts import CASES, self_check
from evaluation.scoring.score import NO_FIELDS, Expression, Score, evaluate
from evaluation.symlg import EDITIONS, PAPER, READINGS, rules

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Predictions = Annotated[Path, typer.Option(help="folder of ID.txt, zip of them, or .jsonl")]
Truth = Annotated[str, typer.Option(help="ARCHIVE.zip:SPLIT, FOLDER:SPLIT, or a folder of .lg")]
Reading = Annotated[str, typer.Option(help=f"whose LaTeX: {', '.join(READINGS)}")]
EditionName = Annotated[str, typer.Option("--edition", help=f"whose tools: {', '.join(EDITIONS)}")]
Captions = Annotated[Path | None, typer.Option(help="ID<TAB>tokens lines, for a folder of .lg")]


@app.callback()
def _commands() -> None:
    pass  # keeps `score` a command of its own


@app.command()
def score(
    predictions: Annotated[list[Path], typer.Option(help="folder of ID.txt, zip of them, or .jsonl; once per set")],
    ground_truth: Annotated[list[str], typer.Option(help="ARCHIVE.zip:SPLIT, FOLDER:SPLIT, or a folder of .lg")],
    captions: Captions = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the score as JSON, one object per set")] = False,
    per_expression: Annotated[Path | None, typer.Option(help="write one CSV row an expression")] = None,
    workdir: Annotated[Path | None, typer.Option(help="keep the scorer's files here")] = None,
    set_name: Annotated[str, typer.Option("--set", help="its name in the signature; else SPLIT, or the folder's")] = "",
    search: Annotated[str, typer.Option(help="search in the signature")] = "unknown",
    select: Annotated[str, typer.Option(help="checkpoint selection in the signature")] = "unknown",
    reading: Reading = PAPER.reading.name,
    edition: EditionName = PAPER.edition.name,
) -> None:
    """Expression rates of predictions, as the CROHME scorer counts them; of several sets, one after another."""
    if len(predictions) != len(ground_truth):
        raise InputError(f"{len(predictions)} --predictions, but {len(ground_truth)} --ground-truth: give one for each")
    if len(predictions) > 1 and (captions or per_expression or workdir or set_name):
        raise InputError("--captions, --per-expression, --workdir and --set are for one set at a time")
    chosen = rules(reading, edition)
    for path, truth in zip(predictions, ground_truth, strict=True):
        fields = {"set": set_name or Path(truth.rpartition(":")[2]).name, "search": search, "select": select}
        with _naming(workdir or tempfile.gettempdir()):
            result = evaluate(path, truth, fields, workdir, _captions(captions), chosen)
        if result.note:
            print(f"note: {result.note}", file=sys.stderr)
        if result.stray:
            print(f"note: {result.stray} predictions have no ground truth and are left out", file=sys.stderr)
        if per_expression:
            columns = [field.name for field in fields_of(Expression)]
            write_csv(per_expression, [asdict(row) for row in result.expressions], columns)
        if as_json:
            print(json.dumps(result.score.as_dict(), indent=2))
        else:
            print_score(result.score)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="predictions of system A")],
    b: Annotated[Path, typer.Argument(help="predictions of system B")],
    ground_truth: Truth,
    as_json: Annotated[bool, typer.Option("--json", help="print the comparison as JSON")] = False,
    changed: Annotated[Path | None, typer.Option(help="write which expressions changed sides as CSV")] = None,
) -> None:
    """Two systems on the same expressions: McNemar on ExpRate, a permutation test on error counts."""
    from evaluation.scoring.stats import compare_paired

    runs = [evaluate(path, ground_truth, NO_FIELDS) for path in (a, b)]
    errors = [{row.id: row.errors for row in run.expressions} for run in runs]
    ids = sorted(errors[0])
    result = compare_paired([errors[0][key] for key in ids], [errors[1][key] for key in ids])
    sides = [
        {
            "id": key,
            "errors_a": errors[0][key],
            "errors_b": errors[1][key],
            "right": "b" if errors[0][key] else "a",
        }
        for key in ids
        if (errors[0][key] == 0) != (errors[1][key] == 0)
    ]
    if changed:
        write_csv(changed, sides, ("id", "errors_a", "errors_b", "right"))
    if as_json:
        print(json.dumps(asdict(result) | {"changed": sides}, indent=2))
        return
    print(f"A {result.exact_a} of {result.n} exact, B {result.exact_b} of {result.n}")
    low, high = result.interval
    print(f"A - B = {result.difference:+.2f} points (95 %: {low:+.2f} to {high:+.2f})")
    print(f"right only in A {result.only_a}, only in B {result.only_b}; McNemar p = {result.mcnemar_p:.4g}")
    print(f"mean errors {result.mean_errors_a:.3f} and {result.mean_errors_b:.3f}; ", end="")
    print(f"paired permutation p = {result.permutation_p:.4g}")
    if changed:
        print(f"{changed}: the {len(sides)} that changed sides")


@app.command()
def editions(
    predictions: Predictions,
    ground_truth: Truth,
    as_json: Annotated[bool, typer.Option("--json", help="print the rows as JSON")] = False,
) -> None:
    """The same predictions under every edition and reading of the official scorer."""
    from evaluation.scoring.editions import table

    rows = table(predictions, ground_truth)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{rows[0]['n']} expressions, in percent")
    print(f"{'edition':<12} {'reading':<12} {'ExpRate':>7} {'<= 1':>7} {'<= 2':>7} {'<= 3':>7} {'tokens':>7}")
    for row in rows:
        counts = [row[key] for key in ("exact", "le1", "le2", "le3", "tokens")]
        rates = ["–" if count is None else f"{100 * count / row['n']:.2f}" for count in counts]
        cells = "".join(f"{rate:>8}" for rate in rates)
        print(f"{row['edition']:<12} {row['reading']:<12}{cells}")


@app.command()
def convention(
    ground_truth: Annotated[str, typer.Argument(help="ARCHIVE.zip:SPLIT, FOLDER:SPLIT, or a folder of .lg")],
) -> None:
    """Which edition of the converter some .lg follow: the Inside relations of their roots."""
    from evaluation.scoring import editions

    name, roots = editions.convention(read_ground_truth(ground_truth).graphs().values())
    shown = ", ".join(f"{count} roots: {kind}" for kind, count in roots.most_common())
    print(f"{ground_truth}: {name}" + (f" ({shown})" if shown else " (no root without index has two members)"))


@app.command()
def errors(
    predictions: Predictions,
    ground_truth: Truth,
    out: Annotated[Path, typer.Option(help="folder for the tables (CSV)")],
    captions: Captions = None,
) -> None:
    """Tables of confused symbols and relations, and of rates by structure and length."""
    from evaluation.scoring import analysis

    with tempfile.TemporaryDirectory() as folder, _naming(folder):
        result = evaluate(predictions, ground_truth, NO_FIELDS, Path(folder), _captions(captions))
        tables = analysis.tables(analysis.load(result))
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        write_csv(out / f"{name}.csv", rows, analysis.COLUMNS[name])
        print(f"{out / name}.csv: {len(rows)} rows")


@app.command()
def bench(
    archive: Annotated[Path, typer.Option(envvar="CROHME", help="CROHME data.zip")] = Path("../shared/crohme/data.zip"),
    golden: Annotated[Path, typer.Option(envvar="GOLDEN_DIR", help="holds comer_released/")] = Path("../shared/golden"),
    repeats: Annotated[int, typer.Option(min=1, help="runs to average")] = 5,
    sample: Annotated[int, typer.Option(min=1, help="files of each set for LGEVAL_BIN's scripts")] = 20,
) -> None:
    """Time of scoring the three test sets, by the scripts and in one process."""
    from evaluation.scoring import bench

    print("\n".join(bench.run(archive, golden / "comer_released", repeats, sample)))


@app.command()
def doctor() -> None:
    """Say which scorer is in use and try it on ten expressions with known errors."""
    check = self_check()
    print(f"{'our own scripts' if check.own else 'LGEVAL_BIN'}: {check.scripts}")
    for failure in check.failures:
        print(f"wrong: {failure}")
    if check.failures:
        raise InputError(f"{check.scripts}: fails its self-check; unset LGEVAL_BIN to score by our own scripts")
    print(f"all {len(CASES)} cases right")


def print_score(score: Score) -> None:
    """The signature line, then every rate with its Wilson interval."""
    from evaluation.scoring.interval import proportion_interval

    def line(name: str, count: int, n: int) -> str:
        if not n:
            return f"{name:>13} {count:>5} of {n:<5}"
        low, high = proportion_interval(count, n)
        return f"{name:>13} {count:>5} of {n:<5} {100 * count / n:6.2f} %  ({100 * low:.1f}–{100 * high:.1f})"

    print(score)
    for name, count in (
        ("exact", score.exact),
        ("<= 1 error", score.le1),
        ("<= 2 errors", score.le2),
        ("<= 3 errors", score.le3),
        ("structure", score.structure),
        ("tokens exact", score.token_exact),
    ):
        if count is not None:
            print(line(name, count, score.n))
    for row in score.by_length or []:
        print(line(row["bucket"], row["exact"], row["n"]))
    print(f"missing {score.missing}, not convertible {score.unconverted}; both count as wrong")


def write_csv(path: Path, rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Write rows as one CSV file, whole or not at all."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is there and no file; choose another name")
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        with _naming(path), part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """A full disk names no file; this says where it was written to."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _captions(path: Path | None) -> dict[str, list[str]] | None:
    return None if path is None else parse_captions(read_text(path), str(path))


def main() -> int:
    """Run the command line; every bad input is one line on stderr."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # "–" on a terminal that has no such sign
    try:
        if app(standalone_mode=False) == 130:
            return 130  # what typer makes of Ctrl-C; older ones let it through
        sys.stdout.flush()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        if not error.filename:  # stdout is full or closed: do not try again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # typer's usage errors; it vendors or depends on click, whose classes differ between versions
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return getattr(error, "exit_code", 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
