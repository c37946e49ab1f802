"""What people hand to a recognizer, as named pictures: paths, folders, bytes, arrays, PIL images, lists of these."""

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps

from hmerbench.benchmarks.data.normalize_image import ENDINGS
from hmerbench.benchmarks.data.pictures import gray_of
from hmerbench.benchmarks.errors import UserError

Picture = Path | bytes | np.ndarray  # a file, its content, or a gray image (H, W) uint8
Given = Path | str | bytes | np.ndarray | Image.Image | IO[bytes]


def is_several(given: Any) -> bool:
    """Whether a folder or a list of pictures was given."""
    if isinstance(given, str | Path):
        return Path(given).is_dir()
    return isinstance(given, Iterable) and not isinstance(given, bytes | np.ndarray) and not hasattr(given, "read")


def files(path: Path) -> list[Path]:
    """The pictures in a folder, if there are any; else the path itself."""
    try:
        return [Path(name) for name, _ in named(path)]
    except UserError:
        return [path]


def named(given: Any, name: str = "image") -> list[tuple[str, Picture]]:
    """Names and pictures, in the order given; a folder's in the order of their names.

    Raises UserError for what is no picture, and for a folder without any.
    """
    if isinstance(given, str | Path):
        path = Path(given)
        if not path.is_dir():
            return [(str(given), path)]
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())
        if not found:
            raise UserError(f"{path}: no pictures in this folder; they end with {', '.join(ENDINGS[:4])}, …")
        return [(str(file), file) for file in found]
    if is_several(given):
        return [pair for number, each in enumerate(given, 1) for pair in named(each, f"{name} {number}")]
    if isinstance(given, Image.Image):
        return [(getattr(given, "filename", "") or name, gray_of(ImageOps.exif_transpose(given)))]
    if hasattr(given, "read"):
        name, given = str(getattr(given, "name", name)), given.read()
    if isinstance(given, bytes | bytearray | memoryview):
        return [(name, bytes(given))]
    if isinstance(given, np.ndarray):
        return [(name, gray_array(given, name))]
    raise UserError(
        f"{name}: {type(given).__name__} is no picture; give a path, a folder, bytes, an array, a PIL image or a list"
    )


def gray_array(array: np.ndarray, name: str) -> np.ndarray:
    """An array as a gray image (H, W) uint8: bool, whole numbers of 8 or 16 bits, or floats from 0 to 1; gray, RGB or
    RGBA."""
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if fits and array.dtype == np.uint16:
        array = (array >> 8).astype(np.uint8)
    elif fits and array.dtype == bool:
        array = array * np.uint8(255)
    elif fits and array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        array = (array * 255).round().astype(np.uint8)
    if not fits or array.dtype != np.uint8:
        raise UserError(
            f"{name}: an array of {array.dtype} of shape {array.shape} is no picture; give (H, W), RGB or RGBA as "
            "uint8, or floats from 0 to 1"
        )
    return array if array.ndim == 2 else gray_of(Image.fromarray(array))
