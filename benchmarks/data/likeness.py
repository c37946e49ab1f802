"""Which images of two splits are the same, or nearly: by their pixels, and by a perceptual hash.

The hash says of each of `SIDE` x `SIDE` cells whether it is lighter than its right neighbor (dHash), in the image cut
to its ink and made as small. It hardly changes with margins, scale, the width of lines or noise. Between CROHME's
splits no image has one within 30 bits of another's; the closest two differ in 31.
"""

from collections.abc import Sequence
from hashlib import sha256

import cv2
import numpy as np

SIDE = 16
NEAR = 20  # bits of 256 in which the hashes of nearly equal images differ at most
ASPECT = 1.1  # how much wider, for its height, one of them may be


def pixels(image: np.ndarray) -> str:
    """The digest of an image's size and pixels."""
    return sha256(repr(image.shape).encode() + image.tobytes()).hexdigest()


def fingerprint(image: np.ndarray) -> np.ndarray:
    """The hash of an image (H, W) uint8 as 4 words of 64 bits, and the logarithm of its aspect ratio as a fifth."""
    x, y, width, height = cv2.boundingRect(image) if image.any() else (0, 0, *image.shape[::-1])
    small = cv2.resize(image[y : y + height, x : x + width], (SIDE + 1, SIDE), interpolation=cv2.INTER_AREA)
    words = np.packbits(small[:, 1:] < small[:, :-1]).view(np.uint64)
    return np.append(words, np.float64(np.log(width / height)).view(np.uint64))


def near(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Pairs of places of nearly equal images, in order, from the fingerprints of two splits."""
    others = np.stack(second)
    found = []
    for place, each in enumerate(first):
        bits = np.bitwise_count(each[:-1] ^ others[:, :-1]).sum(1, dtype=np.int64)
        for other in np.flatnonzero(bits <= NEAR):
            aspects = np.array([each[-1], others[other, -1]]).view(np.float64)
            if abs(aspects[0] - aspects[1]) <= np.log(ASPECT):
                found.append((place, int(other)))
    return found
