"""How large images are when a network reads them: the authors' limits, and the grid of shapes that batches are padded
to. Needs nothing but Python: an exported reader has it, too."""

import math

LOW, HIGH, WIDE = 16, 256, 1024  # the authors' limits on image sides, px
CELL = 16  # the encoder's largest stride: padded sides are multiples of it
STRETCH = 1.12  # ratio of consecutive widths in the grid of padded shapes
COARSE_CELL, COARSE_STRETCH = 32, 1.2  # of the coarse grid: heights are multiples of COARSE_CELL


def rounded(side: float) -> int:
    """Round to whole pixels, half to even, at least 1."""
    return max(1, round(side))


def within_limits(height: int, width: int, scale: float = 1.0) -> float:
    """Factor that brings an image into the authors' range of sides (16..256 high, 16..1024 wide, times `scale`)."""
    low, high, wide = LOW * scale, HIGH * scale, WIDE * scale
    if height > high or width > wide:
        return min(high / height, wide / width)
    return max(low / height, low / width, 1.0)


def padded(height: int, width: int, coarse: bool = False) -> tuple[int, int]:
    """The smallest shape of the grid that holds height x width: a few dozen shapes serve every image. The coarse grid
    has fewer and pads more."""
    cell, stretch = (COARSE_CELL, COARSE_STRETCH) if coarse else (CELL, STRETCH)
    wide = 2 * CELL
    while wide < width:
        cells = wide * stretch / CELL
        wide = max(wide + CELL, (math.ceil(cells) if coarse else int(cells)) * CELL)
    return -(-height // cell) * cell, wide


def shrunk(shape: tuple[int, int], ratio: float) -> tuple[int, int]:
    """Padded shape for any image of `shape` scaled by `ratio`, with room for rounding to pixels twice."""
    height, width = (-(-math.ceil(side * ratio + 1) // CELL) * CELL for side in shape)
    return height, width
