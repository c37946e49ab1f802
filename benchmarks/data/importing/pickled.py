"""images.pkl {name: gray image} beside a list of captions, as CAN and others pack CROHME and HME100K.

A pickle is a program. This reader runs none: it unpickles arrays, and refuses everything else by name.
"""

import io
import pickle
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from hmerbench.benchmarks.data.importing.source import NO_CAPTION, NO_IMAGE, Expression, Source, split_of
from hmerbench.benchmarks.data.importing.tables import THIRD, pair, pairs
from hmerbench.evaluation.stores import ENDINGS
from hmerbench.models.files import one_line, refuse_far_places

ALLOWED = {
    *((module, "_frombuffer") for module in ("numpy.core.numeric", "numpy._core.numeric")),
    ("numpy", "dtype"),
    ("_codecs", "encode"),  # of arrays pickled by Python 2
    ("collections", "OrderedDict"),
}


class _Array:
    """Stands for numpy's: a pickle names it and cannot make one, which might be of any size."""

    def __new__(cls, *_: Any) -> Any:
        raise pickle.UnpicklingError("it makes an array without numbers")


def _empty(*_: Any) -> np.ndarray:
    """Where a pickle puts an array's numbers, with their shape."""
    return np.empty(0, np.uint8)


REPLACED = {("numpy", "ndarray"): _Array}
REPLACED |= {(module, "_reconstruct"): _empty for module in ("numpy.core.multiarray", "numpy._core.multiarray")}


class ArrayUnpickler(pickle.Unpickler):
    """Makes dictionaries, lists and numpy arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The few names that arrays need. Raises UnpicklingError for any other."""
        if (module, name) in REPLACED:
            return REPLACED[module, name]
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it wants to run {module}.{name}")
        return super().find_class(module, name)


def found(source: Source) -> bool:
    """Whether there is a pickle, and a list of captions."""
    return bool(source.tables(".pkl", ".pickle")) and (bool(source.listed) or bool(_lists(source)))


def read(source: Source) -> Iterator[Expression]:
    """The expressions of all pickles, with captions from the lists beside them."""
    for name in source.tables(".pkl", ".pickle"):
        content = source.read(name)
        try:
            held = unpickled(content)
        except ValueError as error:
            source.leave_out(name, str(error))
            continue
        lists = [table for table in _lists(source) if _belong(name, table)]
        if not lists:
            source.leave_out(name, "no list of captions (NAME<TAB>LaTeX) beside it")
            continue
        stems = {_stem(key): key for key in held}
        if len(stems) < len(held):
            source.leave_out(name, "two images of one name")
        named = set[str]()
        for table in lists:
            for key, latex in pairs(source.lines(table)):
                named.add(_stem(key))
                image = held.get(stems.get(_stem(key), ""))
                if "\t" in latex:
                    source.leave_out(key, THIRD)
                elif image is None:
                    source.leave_out(key, NO_IMAGE)
                elif (gray := _gray(image)) is None:
                    source.leave_out(key, "its image is no array of gray values")
                else:
                    yield Expression(_stem(key), gray, latex, split_of(table) or split_of(name))
        for stem in sorted(stems.keys() - named):
            source.leave_out(stem, NO_CAPTION)


def unpickled(content: bytes) -> dict[str, Any]:
    """The images in a pickle by name. Raises ValueError for one that is damaged, or would run a program."""
    try:
        refuse_far_places(content)
        held = ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ValueError(f"no pickle of arrays ({one_line(error)})") from None
    if not isinstance(held, dict) or not held or not all(isinstance(key, str) for key in held):
        raise ValueError("holds no images by name")
    return held


def _gray(image: Any) -> np.ndarray | None:
    """An image (H, W) uint8; None for anything else. Colors come last, or not at all."""
    if not isinstance(image, np.ndarray) or image.dtype not in (np.uint8, np.bool_) or not image.size:
        return None
    gray = image.squeeze().astype(np.uint8) * np.uint8(255 if image.dtype == np.bool_ else 1)
    if gray.ndim == 3 and gray.shape[-1] in (3, 4):
        gray = gray[..., :3].mean(-1).round().astype(np.uint8)
    return np.ascontiguousarray(gray) if gray.ndim == 2 else None


def _stem(name: str) -> str:
    path = PurePosixPath(name)
    return path.stem if path.suffix.lower() in ENDINGS else path.name


def _belong(pickle_name: str, table: str) -> bool:
    """Whether a list lies in a pickle's folder, and is of its split, if both names tell one."""
    both = {split_of(PurePosixPath(name).name) for name in (pickle_name, table)} - {""}
    return PurePosixPath(pickle_name).parent == PurePosixPath(table).parent and len(both) < 2


def _lists(source: Source) -> list[str]:
    texts = [name for name in source.sizes if name.lower().endswith((".txt", ".tsv"))]
    return [name for name in texts if pair("".join(source.filled_lines(name, 1)))[1]]
