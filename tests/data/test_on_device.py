"""The training set on the device: the batches that OpenCV makes on the host, within the documented tolerance."""

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hmerbench.benchmarks.config import Augmentation, Batching, Config, Training
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.augmentation import rescale
from hmerbench.benchmarks.data.batching import TrainingSet, padded_steps
from hmerbench.benchmarks.data.on_device import OnDeviceSet, scale
from hmerbench.benchmarks.data.samples import Sample, evenly
from hmerbench.models.decoder import bidirectional_targets
from hmerbench.models.network import build
from hmerbench.models.settings import CoMERSettings
from hmerbench.models.vocab import Vocabulary

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WORST = 1 if int(cv2.__version__.split(".")[0]) >= 5 else 8  # gray levels, of affine and elastic sampling

AUGMENTATIONS = {
    "none": None,
    "authors": Augmentation(),
    "affine": Augmentation(stretch=0.15, rotation=4.0, shear=0.15),
    "strokes": Augmentation(scale=None, rotation=0.1, thickness=1.0),
    "gpu": Augmentation(stretch=0.15, rotation=4.0, shear=0.15, elastic=3.0, thickness=0.3),
}


def made_up(gray: bool, count: int = 24) -> list[Sample]:
    """Random images, a few of them outside the authors' range of sides."""
    draw = np.random.default_rng(int(gray))
    samples = []
    for number in range(count):
        shape = (300 + number, 40) if number < 2 else (9, 30) if number < 4 else draw.integers(20, (90, 160))
        image = draw.integers(0, 256, shape, dtype=np.uint8) if gray else np.uint8(255) * (draw.random(shape) < 0.3)
        samples.append(Sample(str(number), ("x", "+", "1") * int(draw.integers(1, 5)), image.astype(np.uint8)))
    return samples


@pytest.fixture(scope="module", params=["gray", "binary", "CROHME"])
def samples(request: pytest.FixtureRequest) -> list[Sample]:
    if request.param != "CROHME":
        return made_up(request.param == "gray")
    archive = open_archive(request.getfixturevalue("crohme"))
    return [s for s in evenly(archive.samples("train"), 400) if s.image.size < 40_000][:24]


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_batches_equal_those_made_with_opencv(name, samples):
    order = "shape" if name == "gpu" else "area"
    batching = Batching(order=order, size=8, pixels=2_000_000)
    config = Config(recipe="r", preset="p", augmentation=AUGMENTATIONS[name], training=Training(batching=batching))
    network = build(CoMERSettings(**CoMERSettings.sizes["nano"]))
    host, device = TrainingSet(samples, config), OnDeviceSet(samples, config, DEVICE, network)
    assert host.plan(1) == device.plan(1)
    different = total = 0
    for indices in host.plan(1):
        expected, actual = host.batch(1, indices), device.inputs(device.prepare(1, indices))
        assert torch.equal(actual.mask.cpu(), expected.mask)
        levels = (actual.images.cpu().int() - expected.images.int()).abs()
        assert levels.max() <= (0 if name in ("none", "authors") else WORST)
        assert not actual.images.cpu()[:, 0][expected.mask].any()
        different, total = different + int((levels > 0).sum()), total + int((~expected.mask).sum())
        both = bidirectional_targets([Vocabulary().encode(tokens) for tokens in expected.tokens])
        steps = padded_steps(both[0].shape[1]) if order == "shape" else both[0].shape[1]
        for ids, unpadded in zip(actual.targets, both, strict=True):
            assert torch.equal(ids.cpu(), F.pad(unpadded, (0, steps - unpadded.shape[1])))
    assert WORST > 1 or different < 1e-3 * total


@pytest.mark.parametrize("factor", [1.0, 0.5, 1 / 3, 0.9999, 1.4, 2.0])
def test_scaling_is_opencvs(factor):
    image = np.random.default_rng(0).integers(0, 256, (41, 83), dtype=np.uint8)
    expected = rescale(image, factor)
    sides = torch.tensor(image.shape, dtype=torch.float64)
    effective = torch.tensor([1.0 if expected.shape == image.shape else factor], dtype=torch.float64)
    scaled = scale(torch.from_numpy(image)[None], sides[:1], sides[1:], effective, expected.shape)
    actual = scaled[0].numpy().astype(int)
    if factor == 0.5:  # the last pixel of an odd side is rounded differently
        assert abs(actual - expected).max() <= 1
        actual, expected = actual[:, :-1], expected[:, :-1]
    np.testing.assert_array_equal(actual, expected)
