"""The command-line scripts of convert2symLG and LgEval; evaluation/README.md lists how they differ from the originals.

All but mml2symlg import only the standard library, so that a process starts in a few hundredths of a second.
"""

import fnmatch
import os
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Sequence
from inspect import cleandoc

from hmerbench.evaluation import InputError, lines, readable, run_program, symlg
from hmerbench.evaluation.lgeval import results_folder
from hmerbench.evaluation.lgeval.confusions import object_histogram, page, primitive_histogram
from hmerbench.evaluation.lgeval.label_graph import Graph, read
from hmerbench.evaluation.lgeval.metrics import compare_graphs
from hmerbench.evaluation.lgeval.results_folder import UNCONVERTED, unconverted

Script = Callable[[list[str], symlg.Rules], int | None]
SCRIPTS: dict[str, Callable[[list[str]], int]] = {}  # what runs each, given its arguments


def _script(min_arguments: int, *options: str, folders: int = 0) -> Callable[[Script], Script]:
    """Make a function the script of its name: add `options` (of --reading and --edition, which choose the rules) and
    show its docstring as the usage. `folders` is the least number of arguments if the first is a folder."""

    def program(script: Script) -> Script:
        def main(words: list[str]) -> int:
            parser = ArgumentParser(add_help=False, allow_abbrev=False)
            parser.set_defaults(reading=symlg.PAPER.reading.name, edition=symlg.PAPER.edition.name)
            for option in options:
                parser.add_argument(option)
            chosen, arguments = parser.parse_known_args(words)
            wants_help = not {"-h", "--help"}.isdisjoint(arguments)
            unknown = any(argument.startswith("--") for argument in arguments)
            needed = max(min_arguments, folders if arguments and os.path.isdir(arguments[0]) else 0)
            if wants_help or unknown or len(arguments) < needed:
                print(cleandoc(script.__doc__ or ""), file=sys.stderr)
                return 0 if wants_help else 2
            return run_program(lambda: script(arguments, symlg.rules(chosen.reading, chosen.edition)))

        SCRIPTS[script.__name__] = main
        return script

    return program


# --- conversion -------------------------------------------------------------------------------------------


@_script(2, "--reading", "--edition")
def tex2symlg(arguments: list[str], chosen: symlg.Rules) -> int:
    """Usage: tex2symlg TEXDIR OUTDIR [--reading R] [--edition E]
    Converts every ID.txt of TEXDIR to OUTDIR/ID.lg.
    """

    def convert(text: str, name: str) -> str:
        return symlg.lg_text(symlg.from_latex(symlg.formula_in(text), chosen), name)

    return _convert(arguments, ".txt", convert)


@_script(2, "--edition")
def mml2symlg(arguments: list[str], chosen: symlg.Rules) -> int:
    """Usage: mml2symlg MMLDIR OUTDIR [--edition E]
    Converts every ID.mml of MMLDIR to OUTDIR/ID.lg.
    """
    from hmerbench.evaluation.symlg.mathml import from_mathml

    return _convert(arguments, ".mml", lambda text, name: symlg.lg_text(from_mathml(text, chosen.edition), name))


@_script(2)
def lg2symlg(arguments: list[str], _: symlg.Rules) -> int:
    """Usage: lg2symlg LGDIR OUTDIR
    Writes every ID.lg of LGDIR to OUTDIR/ID.lg, with the path of each object.
    """

    def convert(text: str, name: str) -> str:
        primitives = read(text).nodes  # refuses what is not a label graph
        if primitives and not any(line.lstrip().startswith("O") for line in lines(text)):
            raise InputError("has no objects (O lines), to which paths belong")
        return symlg.with_paths(text, name)

    return _convert(arguments, ".lg", convert)


def _convert(arguments: list[str], ending: str, convert: Callable[[str, str], str]) -> int:
    """Convert each file by itself. A file that does not convert has no .lg afterwards, not even an older one."""
    source, target = arguments[0], os.path.realpath(arguments[1])  # files cannot be moved through a link
    names = _listing(source, ending)
    if os.path.lexists(target) and not os.path.isdir(target):
        raise InputError(f"{arguments[1]}: is not a folder; choose another name for the results")
    if ending == ".lg" and os.path.isdir(target) and os.path.samefile(source, target):
        raise InputError(f"{arguments[1]}: would be overwritten; name another folder for the results")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    within = os.path.join(target, ".converted") if os.path.isdir(target) else target  # on the same file system
    refused: dict[str, str] = {}
    unreadable = 0
    with results_folder.beside(within) as build:
        os.mkdir(build)
        for name in names:
            try:
                with open(os.path.join(source, name + ending), encoding="utf-8-sig") as file:
                    text = convert(file.read(), name)
                results_folder.put(os.path.join(build, name + ".lg"), text)
            except symlg.Unconverted as reason:
                refused[name] = str(reason)
            except (UnicodeDecodeError, InputError, OSError) as error:
                unreadable += 1
                refused[name] = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        if refused:
            lines = (f"{name}\t{reason}\n" for name, reason in refused.items())
            results_folder.put(os.path.join(build, UNCONVERTED), "".join(lines))
        _merge(build, target, names)
    for name, reason in refused.items():
        print(f"{name}{ending}: not converted: {reason}", file=sys.stderr)
    print(f"{len(names)} files, {len(names) - len(refused)} converted to {arguments[1]}")
    return 1 if unreadable else 0


def _merge(build: str, target: str, names: Sequence[str]) -> None:
    if not os.path.isdir(target):
        os.rename(build, target)  # all or nothing
        return
    for file in [*(f"{name}.lg" for name in names), UNCONVERTED]:
        if os.path.exists(os.path.join(build, file)):
            os.replace(os.path.join(build, file), os.path.join(target, file))
        elif os.path.exists(os.path.join(target, file)):
            os.remove(os.path.join(target, file))
    if others := {*fnmatch.filter(os.listdir(target), "[!.]*.lg")} - {f"{name}.lg" for name in names}:
        print(f"note: {target} also holds {len(others)} .lg of other names, left as they were", file=sys.stderr)


def _listing(folder: str, ending: str) -> list[str]:
    with readable(folder):
        entries = os.listdir(folder)
    files = (name for name in entries if name.endswith(ending) and not name.startswith(".") and name != UNCONVERTED)
    names = sorted(name[: -len(ending)] for name in files)
    if not names:
        raise InputError(f"{folder}: holds no {ending} files")
    if odd := next((name for name in names if not name.isprintable()), None):
        raise InputError(f"{folder}: the file name {odd + ending!r} is not printable; rename it")
    return names


# --- evaluation -------------------------------------------------------------------------------------------


def _read_lg(path: str, missing: Graph | None = None) -> Graph:
    if missing is not None and not os.path.exists(path):
        return missing
    with readable(path), open(path, encoding="utf-8-sig") as file:
        return read(file.read(), path)


@_script(1, "--edition", folders=2)
def evaluate(arguments: list[str], chosen: symlg.Rules) -> None:
    """Usage: evaluate OUTDIR GTDIR [p|t|d|s|b] [--edition E]
           evaluate LISTFILE [p|t|d|s|b] [--edition E]   (lines: OUTPUT.lg TARGET.lg)
    Compares label graphs and writes Results_<name>/ to the current folder. Graphs are not drawn.
    """
    output, *rest = arguments[0].rstrip("/") or "/", *arguments[1:]
    stray, lost = [], set()
    if os.path.isdir(output):
        truth, *rest = rest
        label = f"Output File Directory:  {arguments[0]}\nGround Truth Directory: {truth}"
        lost = unconverted(truth)
        names = sorted({*_listing(truth, ".lg"), *lost})
        pairs = [(f"{output}/{name}.lg", os.path.join(truth, name + ".lg")) for name in names]
        others = {*fnmatch.filter(os.listdir(output), "[!.]*.lg")} - {f"{name}.lg" for name in names}
        stray = [f"{output}/{name}" for name in sorted(others)]
    else:
        label, pairs = f"List File: {arguments[0]}", _pairs(output)
    files = []
    for source, target in pairs:
        name = _stem(target)
        truth_graph = _read_lg(target, symlg.UNREADABLE if name in lost else None)
        prediction = _read_lg(source, symlg.EMPTY_GRAPH)
        comparison = compare_graphs(prediction, truth_graph, chosen.edition.inter)
        files.append(results_folder.Scored(name, source, prediction, truth_graph, comparison))
    base = os.path.basename(output)
    results_folder.write_results(base, label, files, map(_read_lg, stray), chosen.edition)
    print(f"{label}\n\n{len(files)} files compared: Results_{base}/Summary.txt")
    counts = {
        "of them have no output file and count as empty graphs": sum(f.prediction is symlg.EMPTY_GRAPH for f in files),
        "output files have no ground truth and are left out": len(stray),
        "ground truths did not convert and count as wrong": sum(f.truth is symlg.UNREADABLE for f in files),
    }
    for text, count in counts.items():
        if count:
            print(f"note: {count} {text}", file=sys.stderr)
    if rest:
        print("note: graphs are not drawn", file=sys.stderr)


def _pairs(path: str) -> list[tuple[str, str]]:
    """The OUTPUT TARGET pairs of a list file, separated by blanks or a comma."""
    with readable(path), open(path, encoding="utf-8-sig") as file:
        rows = [line.replace(",", " ").split() for line in file if line.strip() and not line.startswith("#")]
    if not rows or any(len(row) < 2 for row in rows):
        raise InputError(f"{path}: every line must name an output and a target file")
    (name, count), *_ = Counter(_stem(row[1]) for row in rows).most_common(1)
    if count > 1:
        raise InputError(f"{path}: two targets are called {name}; their results would share one file")
    return [(row[0], row[1]) for row in rows]


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


@_script(2, "--edition")
def evallg(arguments: list[str], chosen: symlg.Rules) -> None:
    """Usage: evallg OUTPUT.lg TARGET.lg [m|diff] [INTER] [--edition E]
    evallg batch LIST [GT-FIRST] [MAT] [MATOBJ] [INTER] [--edition E]   (LIST: one OUTPUT.lg,TARGET.lg per line)
    """
    options, batch = arguments[2:], arguments[0] == "batch"
    complete = "INTER" in options
    inter = complete and chosen.edition.inter
    if "MATRIX" in options:
        raise InputError("MATRIX is not supported: compare whole graphs, which include their matrices")
    known = {"GT-FIRST", "MAT", "MATOBJ", "INTER"} if batch else {"m", "diff", "INTER"}
    if unknown := [option for option in options if option not in known]:
        raise InputError(f"{unknown[0]}: is none of {', '.join(sorted(known))}")
    if batch:
        _evallg_batch(arguments[1], options, inter)
        return
    comparison = compare_graphs(_read_lg(arguments[0], symlg.EMPTY_GRAPH), _read_lg(arguments[1]), inter, complete)
    if "diff" not in options:
        sys.stdout.write(comparison.csv())
    if "m" not in options:
        sys.stdout.write(comparison.diff())


def _evallg_batch(path: str, options: list[str], inter: bool) -> None:
    pairs = _pairs(path)
    if "GT-FIRST" in options:
        pairs = [(output, target) for target, output in pairs]
    graphs = [(_read_lg(output, symlg.EMPTY_GRAPH), _read_lg(target)) for output, target in pairs]
    compared = [
        (",".join(names), compare_graphs(*both, inter, complete=False))
        for names, both in zip(pairs, graphs, strict=True)
    ]
    results_folder.replace(f"{path}.m", "".join(f"*M,{names}\n{found.csv()}" for names, found in compared))
    results_folder.replace(f"{path}.diff", "".join(f"DIFF,{names}\n{found.diff()}" for names, found in compared))
    tables = {"Primitives": primitive_histogram(graphs, (2, 3))} if "MAT" in options else {}
    tables |= {"Objects": object_histogram(graphs, 2)} if "MATOBJ" in options else {}
    if tables:
        results_folder.replace(f"{path}.html", page(path, tables, 3))


@_script(2, folders=3)
def confHist(arguments: list[str], _: symlg.Rules) -> None:
    """Usage: confHist DIR1 DIR2 SIZE [MINCOUNT] [strokes]
           confHist LISTFILE SIZE [MINCOUNT] [strokes]
    Writes CH_<name>.html: substructures of SIZE symbols of the truth (DIR2) and what was predicted instead.
    """
    if os.path.isdir(arguments[0]):
        output, truth, *rest = arguments
        names = _listing(truth, ".lg")
        pairs = [(os.path.join(output, f"{name}.lg"), os.path.join(truth, f"{name}.lg")) for name in names]
        title = f"{os.path.basename(output.rstrip('/'))}_vs_{os.path.basename(truth.rstrip('/'))}"
    else:
        pairs, rest, title = _pairs(arguments[0]), arguments[1:], os.path.basename(arguments[0])
    numbers = [text for text in rest if text != "strokes"]
    try:
        size, min_count = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 1
    except (ValueError, IndexError):
        raise InputError(f"SIZE and MINCOUNT must be numbers, not {' '.join(rest[:2])}") from None
    if not 1 <= size <= 5:
        raise InputError(f"SIZE must be between 1 and 5, not {size}")
    graphs = [(_read_lg(output, symlg.EMPTY_GRAPH), _read_lg(target)) for output, target in pairs]
    tables = {f"{size} objects": object_histogram(graphs, size)}
    tables |= {f"{size} primitives": primitive_histogram(graphs, (size,))} if "strokes" in rest else {}
    results_folder.replace(f"CH_{title}.html", page(title, tables, min_count))
    print(f"CH_{title}.html")


@_script(1)
def extract_exprate(arguments: list[str], _: symlg.Rules) -> None:
    """Usage: extract_exprate COUNT [SUMMARY]   (SUMMARY: Results_pred_symlg/Summary.txt)"""
    path = arguments[1] if len(arguments) > 1 else "Results_pred_symlg/Summary.txt"
    counts = results_folder.read_summary(path)
    if arguments[0] not in ("1", "2", "3", "4"):
        raise InputError(f"COUNT must be between 1 and 4, not {arguments[0]}")
    print(f"Struct Rate: {round(100 * counts['structure'] / counts['n'], 2)}")
    for k, key in enumerate(("exact", "le1", "le2", "le3")[: int(arguments[0])]):
        print(f"Exprate {k} tolerated: {100 * counts[key] / counts['n']:.3f}")
