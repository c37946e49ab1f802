"""Nearly equal images are found, whatever was done to them; others are not."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from hmerbench.benchmarks.data.passport import fingerprint, near, pixels

FORMULAS = ["x^2+1", "y^2+1", "a-b=c", "3(k+7)", "dx/dt", "x^2-1", "(1,2,n)", "|a|+|b|"]


def drawn(text: str, thickness: int = 2) -> np.ndarray:
    canvas = np.zeros((120, 320), np.uint8)
    return cv2.putText(canvas, text, (20, 80), cv2.FONT_HERSHEY_SCRIPT_COMPLEX, 1.5, 255, thickness, cv2.LINE_AA)


def noisy(image: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(3).normal(0, 20, image.shape)
    return np.where(image, np.clip(image - np.abs(noise), 1, 255), 0).astype(np.uint8)


DONE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the same": lambda image: image,
    "margins": lambda image: np.pad(image, ((30, 5), (0, 60))),
    "larger": lambda image: cv2.resize(image, None, fx=1.7, fy=1.7),
    "noise in the ink": noisy,
    "JPEG": lambda image: np.asarray(cv2.imdecode(cv2.imencode(".jpg", image)[1], cv2.IMREAD_GRAYSCALE)) & 0xF0,
    "a little rotated": lambda image: cv2.warpAffine(
        image, cv2.getRotationMatrix2D((160, 60), 0.5, 1), image.shape[::-1]
    ),
}


@pytest.mark.parametrize("done", DONE)
def test_only_the_same_formula_is_near(done: str) -> None:
    images = [drawn(text) for text in FORMULAS]
    others = [DONE[done](image) for image in images]
    pairs = near([fingerprint(image) for image in images], [fingerprint(image) for image in others])
    assert pairs == [(place, place) for place in range(len(FORMULAS))]
    assert (pixels(images[0]) == pixels(others[0])) is (done == "the same")


def test_another_shape_is_another_image_and_no_ink_is_no_fault() -> None:
    wide, empty = cv2.resize(drawn("x"), None, fx=2, fy=1), np.zeros((20, 30), np.uint8)
    assert near([fingerprint(drawn("x"))], [fingerprint(wide)]) == []
    assert near([fingerprint(empty)], [fingerprint(drawn("x")), fingerprint(empty)]) == [(0, 1)]
