"""Faults planted in the program while it runs: a piece of source that occurs once gets another in its place.

The file is found by its text, so a fault survives that files are moved or renamed, and whoever changes the lines
themselves plants it in the new ones. In a function, its code is exchanged, so that whoever has imported it gets the
fault; a constant of a module is set wherever it was imported to; settings are read from the changed file.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import hmerbench.benchmarks.resolve
from hmerbench.benchmarks.paths import CHECKOUT
from hmerbench.evaluation.strict import parse_yaml

Planted = tuple[Callable[[], None], Callable[[], None]]  # how to plant a fault, and how to take it out


class Fault(NamedTuple):
    """A mechanism, what is to see the fault in it (a part of the fixed job, or a test), a piece of source, and what
    takes its place."""

    mechanism: str
    seen_by: str
    before: str
    after: str


@cache
def sources() -> Mapping[Path, str]:
    """The text of the program's files by path."""
    files = (path for package in ("benchmarks", "evaluation", "models") for path in (CHECKOUT / package).rglob("*"))
    return {path: path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".yaml")}


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """The program with the fault. AssertionError if its piece of source does not occur exactly once."""
    found = {path: n for path, text in sources().items() if (n := text.count(fault.before))}
    assert sum(found.values()) == 1, f"{fault.mechanism}: `{fault.before}` occurs in {found or 'no file'}"
    ((path, _),) = found.items()
    plant, take_out = _in_settings(path, fault) if path.suffix == ".yaml" else _in_program(path, fault)
    plant()
    try:
        yield
    finally:
        take_out()


def _in_settings(path: Path, fault: Fault) -> Planted:
    """A fault in a recipe or preset, which `resolve` reads anew each time."""
    config: Any = hmerbench.benchmarks.resolve
    real, text = config.read_yaml, sources()[path].replace(fault.before, fault.after)

    def read_yaml(file: Path) -> Any:
        return parse_yaml(text) if file.resolve() == path.resolve() else real(file)

    return lambda: setattr(config, "read_yaml", read_yaml), lambda: setattr(config, "read_yaml", real)


def _in_program(path: Path, fault: Fault) -> Planted:
    """A fault in a function, or in a constant of a module."""
    source = sources()[path]
    module = import_module(".".join(("hmerbench", *path.relative_to(CHECKOUT).with_suffix("").parts)))
    line = source[: source.index(fault.before)].count("\n") + 1
    tree = ast.parse(source)
    (statement,) = (node for node in tree.body if _first_line(node) <= line <= (node.end_lineno or 0))
    if isinstance(statement, ast.ClassDef):
        (method,) = (node for node in statement.body if _first_line(node) <= line <= (node.end_lineno or 0))
        names = [statement.name, getattr(method, "name", "")]
    elif isinstance(statement, ast.FunctionDef):
        names = [statement.name]
    else:
        return _in_constant(module, source, statement, fault)
    function, code = _function(module, names), compile(source.replace(fault.before, fault.after), str(path), "exec")
    for name in names:
        code = next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)
    right, wrong = function.__code__, code

    def put(code: CodeType) -> None:
        function.__code__ = code
        for each in vars(module).values():  # what it remembers was found with the other code
            getattr(each, "cache_clear", lambda: None)()

    return lambda: put(wrong), lambda: put(right)


def _in_constant(module: ModuleType, source: str, statement: ast.stmt, fault: Fault) -> Planted:
    """A fault in the value of a constant, wherever it was imported to."""
    assert isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name), fault
    name, text = statement.targets[0].id, ast.get_source_segment(source, statement) or ""
    scope, right = dict(vars(module)), getattr(module, name)
    exec(text.replace(fault.before, fault.after), scope)
    places = [each for each in list(sys.modules.values()) if getattr(each, "__dict__", {}).get(name) is right]

    def put(value: Any) -> None:
        for place in places:
            setattr(place, name, value)

    return lambda: put(scope[name]), lambda: put(right)


def _first_line(node: ast.stmt) -> int:
    """Its first line, decorators included."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


def _function(module: ModuleType, names: list[str]) -> FunctionType:
    """A function or method, without its decorators."""
    place: Any = module
    for name in names[:-1]:
        place = getattr(place, name)
    value: Any = vars(place)[names[-1]]
    value = value.fget if isinstance(value, property) else getattr(value, "func", getattr(value, "__func__", value))
    function = inspect.unwrap(value)
    assert isinstance(function, FunctionType)
    return function
