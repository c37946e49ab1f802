"""From any picture of an expression to ink as CROHME renders it: one way for recognition, evaluation and training.

CROHME's images are rendered from pen strokes: binary, strokes three pixels wide, symbols of one size. So a picture is
turned upright, what lies around the paper is cut off, ink is separated from paper, scaled to the size of CROHME's
symbols and redrawn along its skeleton. An image that is drawn as CROHME's are passes through, bit for bit.
"""

import errno
import io
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from hmerbench.benchmarks.config import AUTHORS_MAX_PIXELS
from hmerbench.benchmarks.data.ink import MARGIN, largest_scale
from hmerbench.benchmarks.data.pictures import (
    PEN,
    TYPICAL,
    TYPICAL_HIGH,
    TYPICAL_LOW,
    gray_of,
    shrunk,
    stroke_width,
    symbol_height,
    thin,
    without_surroundings,
)
from hmerbench.benchmarks.errors import UserError
from hmerbench.models.files import one_line

# Formats; their files have `stores.ENDINGS`. EPS and WMF are programs, PSD and FITS no pictures of paper.
FORMATS = ("PNG", "BMP", "DIB", "JPEG", "JPEG2000", "WEBP", "TIFF", "GIF", "AVIF", "HEIF", "PPM", "PCX", "ICO", "QOI")
MAX_PIXELS = 100_000_000  # a larger file is refused unread: no photograph, but maybe a decompression bomb
MAX_PROPORTION = 100  # of the longer to the shorter side: no expression is that long and thin
PIXEL_BYTES = 25  # that decoding takes at most, for a pixel: JPEG2000, of those formats, takes most
RULED = 1.8  # times the contrast of the lines printed on paper is that of ink, at least
LINES = 6  # of them, parallel and from side to side, at least: fewer may be bars of fractions
WORKING_SIDE = 2000  # px; larger images are shrunk first
_WARNINGS = threading.Lock()  # `catch_warnings` of two threads at once can leave the caller's off for good
NO_INK = "{}: no ink on it that stands out from the paper; give a sharper or closer picture"


@dataclass(frozen=True)
class Prepared:
    """An image as a network reads it, (H, W) uint8, white ink on black, and what was done to the picture, in order."""

    image: np.ndarray
    done: tuple[str, ...] = ()


def prepare(source: Path | bytes | np.ndarray, name: str, max_area: int = AUTHORS_MAX_PIXELS) -> Prepared:
    """The picture `name`, given as a file, its content or a gray image (H, W) uint8, prepared for a network: 255 on 0,
    12 px margin, 3 px strokes, as CROHME's are. Ink that already has their size and stroke width is not changed.

    Raises UserError for one that cannot be read, and for one without ink that can be an expression.
    """
    done: list[str] = []
    gray = source if isinstance(source, np.ndarray) else decoded(source, name, done.append)
    if gray.ndim != 2 or gray.dtype != np.uint8:
        raise UserError(f"{name}: must be a gray image (H, W) of uint8, not {gray.dtype} of shape {gray.shape}")
    if gray.size <= max_area and drawn_as_crohme(gray):
        return Prepared(gray)
    _check_proportion(gray, name)
    gray, cut = without_surroundings(shrunk(gray, WORKING_SIDE))
    done += [f"{what} cut off" for what in cut]
    _check_proportion(gray, name)
    whole, dark = _ink(gray, name)
    if dark:
        done.append("inverted")
    ink = _crop(_without_specks(whole))
    stroke = stroke_width(ink)
    typical = symbol_height(ink, stroke)
    if typical is None or typical <= stroke:  # hardly anything but bars, dots and stripes
        factor = PEN / stroke
    elif TYPICAL_LOW <= typical <= TYPICAL_HIGH:  # not scaled
        factor = 1.0
    else:
        factor = (TYPICAL - PEN) / (typical - stroke)
    factor = min(factor, largest_scale(ink.shape[1], ink.shape[0], 2 * (MARGIN + PEN), max_area))
    if factor != 1 or not PEN - 0.5 < stroke < PEN + 1:
        done.append(f"scaled by {factor:.2g}, strokes of {stroke:.1f} px redrawn")
        ink = _redraw(ink, factor, stroke)
    if not ink.any():  # nothing but specks that vanish at this scale
        raise UserError(NO_INK.format(name))
    # CROHME has one row less below and to the right
    return Prepared(np.pad(ink * np.uint8(255), (MARGIN, MARGIN - 1)), tuple(done))


def drawn_as_crohme(gray: np.ndarray) -> bool:
    """Whether an image is binary, with white ink on black and the margins that every image of CROHME has."""
    height, width = gray.shape
    x, y, wide, high = cv2.boundingRect(gray)
    margins = (x, y, width - x - wide, height - y - high)
    return margins == (MARGIN, MARGIN, MARGIN - 1, MARGIN - 1) and bool(np.isin(gray, (0, 255)).all())


def decoded(source: Path | bytes, name: str, tell: Callable[[str], object] = lambda done: None) -> np.ndarray:
    """The brightness of a picture, (H, W) uint8: upright, transparency filled in, of several frames the first.

    `tell` is called with each change. Raises UserError.
    """
    try:
        if isinstance(source, Path) and source.exists() and not source.is_file():
            raise IsADirectoryError(errno.EISDIR, "not a file")  # reading a pipe may never end
        if isinstance(source, bytes) and _gray_bitmap(source):
            return np.asarray(cv2.imdecode(np.frombuffer(source, np.uint8), cv2.IMREAD_GRAYSCALE))
        with _opened(source) as picture:
            if picture.getexif().get(ExifTags.Base.Orientation, 1) != 1:
                tell("turned upright")
            if getattr(picture, "n_frames", 1) > 1:
                tell("first frame taken")
            ImageOps.exif_transpose(picture, in_place=True)
            if picture.has_transparency_data:
                tell("transparency filled in")
            return gray_of(picture)
    except (Image.DecompressionBombError, MemoryError):
        raise UserError(f"{name}: more than {MAX_PIXELS // 10**6} million pixels; scale it down") from None
    except UnidentifiedImageError:
        raise UserError(f"{name}: {_unidentified(source)}") from None
    except Exception as error:  # a damaged file makes the decoders raise nearly anything
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"{name}: {error.strerror}; give the path of an image that may be read") from None
        raise UserError(f"{name}: damaged image ({one_line(error)}); save it again") from None


GRAYS = bytes(byte for level in range(256) for byte in (level, level, level, 0))  # the palette of a gray bitmap


def _gray_bitmap(content: bytes) -> bool:
    """Whether this is an uncompressed bitmap of 256 grays, as CROHME's are, whole and with nothing behind it.

    OpenCV reads it as Pillow does, which goes through the palette entry by entry, most of its time."""
    if content[:2] != b"BM" or content[54:1078] != GRAYS:
        return False
    start, header, width, height, planes, bits, compression = struct.unpack_from("<IIiiHHI", content, 10)
    (colors,) = struct.unpack_from("<I", content, 46)
    size = 1078 + abs(height) * (width + -width % 4)
    known = (start, header, planes, bits, compression) == (1078, 40, 1, 8, 0) and colors in (0, 256)
    return known and width > 0 and 0 < width * abs(height) <= MAX_PIXELS and len(content) == size


@contextmanager
def _opened(source: Path | bytes) -> Iterator[Image.Image]:
    """A picture of which nothing is decoded yet; a large JPEG will be at a fraction of its size."""
    with suppress(ImportError):  # it is the package of the extra `heic`
        from pillow_heif import register_heif_opener

        register_heif_opener()
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    with _WARNINGS, warnings.catch_warnings(action="ignore"), Image.open(stream, formats=FORMATS) as picture:
        if picture.width * picture.height > MAX_PIXELS:
            raise Image.DecompressionBombError
        picture.draft("L", (WORKING_SIDE, WORKING_SIDE))
        yield picture


def pixels_to_decode(source: Path | bytes) -> int:
    """How many pixels `decoded` holds at once, each of up to PIXEL_BYTES; of what is no picture, none."""
    try:
        with _opened(source) as picture:
            return picture.width * picture.height
    except Image.DecompressionBombError:
        return MAX_PIXELS + 1  # or more
    except Exception:  # `decoded` says what is wrong with it
        return 0


def mime_type(content: bytes) -> str:
    """The format of a picture that `decoded` reads, as a MIME type told by its content; of others that of any bytes."""
    if _gray_bitmap(content):
        return "image/bmp"
    with suppress(Exception), _opened(content) as picture:
        return Image.MIME.get(picture.format or "") or f"image/{picture.format}".lower()
    return "application/octet-stream"


def _unidentified(source: Path | bytes) -> str:
    """What to do about a file that no decoder knows."""
    start = source.read_bytes()[:12] if isinstance(source, Path) else source[:12]
    if start[4:8] == b"ftyp":
        return "HEIC is read with pip install 'hmerbench[heic]'; install that, or convert it to PNG"
    return "not an image of a known format (PNG, JPEG, WebP, TIFF, BMP, GIF, HEIC, …); convert it to PNG"


def _check_proportion(gray: np.ndarray, name: str) -> None:
    height, width = gray.shape
    if not gray.size:
        raise UserError(NO_INK.format(name))
    if max(width, height) > MAX_PROPORTION * min(width, height):
        raise UserError(f"{name}: {width} x {height} pixels, too long and thin for an expression; cut one out again")


def _ink(gray: np.ndarray, name: str) -> tuple[np.ndarray, bool]:
    """0/1 ink mask by Otsu's threshold on the contrast with the paper, which may be unevenly lit; whether ink is
    darker than paper."""
    paper = _paper(gray)
    difference = gray.astype(np.float32) - paper
    dark = bool((difference**3).sum() < 0)  # ink differs from the paper more than noise does
    room = np.maximum(paper if dark else 255 - paper, 32)
    contrast = np.clip((-difference if dark else difference) / room, 0, 1)
    _, mask = cv2.threshold((contrast * 255).astype(np.uint8), 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    inside, noise = mask.astype(bool), 1.48 * np.median(np.abs(difference))
    gap = contrast[inside].mean() - contrast[~inside].mean() if 0 < inside.mean() < 0.5 else 0.0
    if gap < max(0.08, 5 * noise / 255):
        raise UserError(NO_INK.format(name))
    return _without_ruling(mask, (contrast * 255).astype(np.uint8)), dark


def _without_ruling(mask: np.ndarray, contrast: np.ndarray) -> np.ndarray:
    """The ink without the lines printed on the paper, if it stands out from them as they do from the paper."""
    level, _ = cv2.threshold(contrast[mask > 0].reshape(-1, 1), 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    ink = (contrast > level).astype(np.uint8)
    pale = mask & (1 - cv2.dilate(ink, np.ones((5, 5), np.uint8)))  # but for the soft edges of strokes
    if not ink.any() or not pale.any() or contrast[ink > 0].mean() < RULED * contrast[pale > 0].mean():
        return mask
    small = (shrunk(pale * np.uint8(255), 640) > 0).astype(np.uint8)
    return ink if max(_parallel_lines(small), _parallel_lines(small.T.copy())) >= LINES else mask


def _parallel_lines(mask: np.ndarray) -> int:
    """How many nearly straight lines go from the left side of a 0/1 mask to its right side, or almost."""
    wide = mask.shape[1]
    found = cv2.HoughLinesP(mask, 1, np.pi / 360, wide // 3, minLineLength=0.7 * wide, maxLineGap=wide // 8)
    drawn = np.zeros_like(mask)
    for x1, y1, x2, y2 in () if found is None else found.reshape(-1, 4):
        if abs(y2 - y1) < abs(x2 - x1) / 2:
            cv2.line(drawn, (int(x1), int(y1)), (int(x2), int(y2)), 1, 3)
    return cv2.connectedComponents(drawn)[0] - 1


def _paper(gray: np.ndarray) -> np.ndarray:
    """Brightness of the paper at every pixel, float32: the median over a wide neighborhood."""
    small = shrunk(gray, 400)
    width = max(63, max(small.shape) // 4) | 1
    paper = cv2.medianBlur(small, width).astype(np.float32)
    return cv2.resize(paper, gray.shape[::-1], interpolation=cv2.INTER_LINEAR)


def _without_specks(ink: np.ndarray) -> np.ndarray:
    """Remove dirt: components much smaller than a dot of the pen that wrote the rest."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=8)
    areas = stats[:, cv2.CC_STAT_AREA]
    keep = areas >= min(max(3, stroke_width(ink) ** 2 / 4), areas[1:].max())
    keep[0] = False
    return keep.astype(np.uint8)[np.asarray(labels, np.intp)]


def _crop(ink: np.ndarray) -> np.ndarray:
    x, y, width, height = cv2.boundingRect(ink)
    return ink[y : y + height, x : x + width]


def _redraw(ink: np.ndarray, factor: float, stroke: float) -> np.ndarray:
    """Scale ink by `factor` and redraw its skeleton with CROHME's pen."""
    first = max(factor, min(1.0, 4 * PEN / stroke))  # shrinks thick strokes: thinning takes a step per pixel of width
    method = cv2.INTER_AREA if first < 1 else cv2.INTER_LINEAR
    scaled = cv2.resize(np.pad(ink * np.uint8(255), PEN), None, fx=first, fy=first, interpolation=method)
    points = np.argwhere(thin((scaled > 127).astype(np.uint8))) * (factor / first)
    if not len(points):
        return np.zeros((1, 1), np.uint8)
    points = np.round(points - points.min(0)).astype(int) + 1
    canvas = np.zeros(points.max(0) + 2, np.uint8)
    canvas[tuple(points.T)] = 1
    return cv2.dilate(canvas, np.ones((PEN, PEN), np.uint8))
