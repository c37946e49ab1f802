"""Scaling and batches against the authors' program (PARITY_DIR), and the properties of the grid of shapes."""

import gzip
import json
import os
import signal
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hmerbench.benchmarks.config import Augmentation, Batching, Config, Data, Training
from hmerbench.benchmarks.data.archive import open_archive
from hmerbench.benchmarks.data.augmentation import distort, rescale, sides
from hmerbench.benchmarks.data.batching import (
    TrainingSet,
    area_batches,
    evaluation_batches,
    pad,
    padded_steps,
    shape_batches,
)
from hmerbench.benchmarks.data.samples import Sample
from hmerbench.benchmarks.data.sizes import padded, within_limits
from hmerbench.benchmarks.errors import UserError
from hmerbench.benchmarks.resolve import resolve
from hmerbench.benchmarks.training.training_data import prepared, worker_lost
from tests.helpers.parity import arrays
from tests.helpers.paths import PARITY


def made_up(count: int = 60, seed: int = 0) -> list[Sample]:
    draw = np.random.default_rng(seed)
    samples = []
    for number in range(count):
        image = (draw.random((draw.integers(20, 120), draw.integers(20, 400))) < 0.1).astype(np.uint8) * 255
        samples.append(Sample(f"made_{number}", ("x",) * int(draw.integers(1, 30)), image))
    return samples


def config(augmentation: Augmentation | None = None, **batching) -> Config:
    kept = {"order": "shape", "size": 8, "pixels": 200_000, "micro_batches": 1} | batching
    return Config(recipe="r", preset="p", augmentation=augmentation, training=Training(batching=Batching(**kept)))


def test_scaling_is_the_authors():
    theirs = arrays("scaling", PARITY)
    described = json.loads((PARITY / "scaling.json").read_text())["arrays"]
    checked = 0
    for name in described:
        if "/" not in name:
            continue
        source, step = name.split("/")
        image = theirs[source].numpy().astype(np.uint8)
        if step.startswith("aug"):
            image = rescale(image, float(step.removeprefix("aug").removesuffix("_limit")))
        if step.endswith("limit"):
            image = rescale(image, within_limits(*image.shape))
        np.testing.assert_array_equal(image, theirs[name].numpy(), err_msg=name)
        checked += 1
    assert checked >= 20


def test_the_authors_distortion_is_scaling_then_limits():
    theirs = arrays("scaling", PARITY)
    image, expected = theirs["img0"].numpy().astype(np.uint8), theirs["img0/aug1.4_limit"].numpy()
    draw = np.random.default_rng(0)
    distortion = distort(Augmentation(scale=(1.4, 1.4)), *sides(image), draw)
    np.testing.assert_array_equal(distortion.apply(image, None, draw), expected)
    assert (distortion.height, distortion.width) == expected.shape


def test_an_image_keeps_its_only_row():
    for factor in (0.5, 1.0):
        distortion = distort(Augmentation(scale=(factor, factor)), 1, 2400, np.random.default_rng(0))
        image = distortion.apply(np.full((1, 2400), 255, np.uint8), None, np.random.default_rng(0))
        assert image.shape == (distortion.height, distortion.width) == (1, 1024)


def test_batches_are_the_authors(crohme):
    archive = open_archive(crohme)
    if not (PARITY / "batches.json.gz").exists():
        pytest.skip("the authors' batches of CROHME are not here; set PARITY_DIR")
    runs = json.loads(gzip.decompress((PARITY / "batches.json.gz").read_bytes()))["runs"]
    assert runs
    for run in runs:
        samples = [
            s
            for s in archive.samples(run["split"])
            if s.image.size <= run["max_area"] and len(s.tokens) <= run["max_label_len"]
        ]
        assert len(samples) == run["n_used"]
        batches = area_batches([s.image.shape for s in samples], run["batch_size"], run["max_area"])
        assert [[samples[i].id for i in batch] for batch in batches] == run["batches"]


def test_shape_batches_use_every_image_once_within_their_limits():
    samples = made_up(500)
    sizes = [s.image.shape for s in samples]
    batches = shape_batches(sizes, [len(s.tokens) for s in samples], 8, 100_000, np.random.default_rng(0))
    assert sorted(i for batch in batches for i in batch) == list(range(500))
    for batch in batches:
        shape = padded(max(sizes[i][0] for i in batch), max(sizes[i][1] for i in batch))
        assert len(batch) <= 8
        assert len(batch) == 1 or len(batch) * shape[0] * shape[1] <= 100_000


def test_padded_steps_stay_within_the_networks():
    assert [padded_steps(n) for n in (1, 8, 9, 496, 497, 500)] == [8, 8, 16, 496, 500, 500]
    assert [padded_steps(n, coarse=True) for n in (1, 25, 97, 209, 499)] == [8, 32, 208, 216, 500]


def test_padded_shapes_are_few_and_close():
    shapes = {padded(h, w) for h in range(16, 257) for w in range(16, 1025, 7)}
    assert len(shapes) < 16 * 40
    assert all(h % 16 == 0 and w % 16 == 0 for h, w in shapes)
    assert all(padded(h, w)[1] <= 1.13 * w + 16 for h, w in [(20, 100), (20, 300), (20, 999)])


@pytest.mark.parametrize(
    "augmentation", [None, Augmentation(), Augmentation(stretch=0.2, rotation=5, shear=0.2, elastic=2, thickness=0.5)]
)
def test_a_sample_depends_on_seed_epoch_and_number_alone(augmentation, monkeypatch):
    samples = made_up()
    once = TrainingSet(samples, config(augmentation))
    again = TrainingSet(samples, config(augmentation))
    again.plan(3)  # other draws in between change nothing
    plan = once.plan(1)
    assert plan == again.plan(1) != once.plan(2)
    monkeypatch.setattr(TrainingSet, "prepare", TrainingSet.batch)
    serial = list(prepared(once, 1, plan, workers=0))
    parallel = list(prepared(again, 1, plan, workers=3))
    for one, other in zip(serial, parallel, strict=True):
        assert one.ids == other.ids and all(map(torch.equal, one.views[0], other.views[0]))
    (alone, mask), (images, _) = once.batch(1, [plan[0][0]]).views[0], serial[0].views[0]
    h, w = (~mask[0]).any(1).sum(), (~mask[0]).any(0).sum()
    assert (alone[0, 0, :h, :w] == images[0, 0, :h, :w]).all()
    later, _ = once.batch(2, plan[0]).views[0]
    changed = bool((later.float().mean() != images.float().mean()).item())
    assert changed == (augmentation is not None)


def test_distortion_keeps_the_ink():
    image = np.zeros((60, 200), np.uint8)
    image[10:50, 10:190] = 255
    strong = Augmentation(scale=(1, 1), stretch=0.2, rotation=8, shear=0.2, elastic=2, thickness=1)
    for seed in range(20):
        draw = np.random.default_rng(seed)
        distorted = distort(strong, *sides(image), draw).apply(image, strong, draw)
        assert 0.85 < distorted.sum() / image.sum() < 1.15


@pytest.mark.parametrize("micro_batches", [4, 50])
def test_batches_repeat_to_fill_the_last_step(micro_batches):
    """Even if a step has more micro-batches than an epoch has batches: some are then repeated within the step."""
    training = TrainingSet(made_up(61), config(order="area", size=3, micro_batches=micro_batches))
    plan = training.plan(0)
    assert plan and len(plan) % micro_batches == 0
    assert {i for batch in plan for i in batch} == set(range(61))


def test_a_row_without_scaling_sees_every_image():
    """Also where its batches are more than those of the rows that it takes as many steps as."""
    plain = Augmentation(scale=None, stretch=0.15, rotation=4.0, shear=0.15)
    for seed in (3, 9):
        training = TrainingSet(made_up(40, seed), config(plain, size=24, pixels=240_000, coarse=True))
        assert {i for batch in training.plan(5) for i in batch} == set(range(40))


def test_a_row_without_scaling_takes_as_many_steps_as_the_others_of_its_preset(tmp_path: Path):
    steps = set()
    for scale in ([0.98, 1.02], [0.7, 1.4], [1.5, 2.5]):
        preset = tmp_path / "preset.yaml"
        preset.write_text(f"base: small\naugmentation: {{scale: {scale}}}\ndata: {{scale: 1.0}}")
        rows = [resolve(recipe, str(preset), 7) for recipe in ("bttr", "bttr-baseline")]
        without, with_ = (len(TrainingSet(made_up(60), row).plan(1)) for row in rows)
        assert without == with_
        steps.add(without)
    assert len(steps) == 3
    preset.write_text("base: small\naugmentation: null")  # no row scales
    assert resolve("bttr", str(preset), 7).augmentation is None
    preset.write_text("base: small\naugmentation: {scale: [1.4, 0.7]}")
    with pytest.raises(UserError, match="the smaller factor first"):
        resolve("bttr", str(preset), 7)
    plain = resolve("bttr", "small", 7)
    assert "scale_of_others" not in plain.to_yaml() and rows[0].to_yaml().count("scale_of_others") == 1
    assert rows[0].digest != plain.digest and "scale_of_others" not in rows[1].to_yaml()


def test_padding_is_marked_and_black():
    images, mask = pad([np.full((3, 5), 255, np.uint8), np.full((4, 2), 255, np.uint8)])
    assert images.shape == (2, 1, 4, 5)
    assert (images[:, 0].bool() == ~mask).all()


@pytest.mark.parametrize("order", ["area", "shape"])
def test_evaluation_batches_contain_every_image_that_the_protocol_keeps(order):
    samples = [*made_up(40), Sample("huge", ("x",), np.zeros((600, 600), np.uint8))]
    scales, sizes = [1.0, 1.5, 0.7], {sample.id: np.array(sample.image.shape) for sample in samples}
    batches = evaluation_batches(samples, config(order=order), 4, scales)
    assert sorted(name for b in batches for name in b.ids) == sorted(f"made_{n}" for n in range(40))
    assert all(len(b.ids) <= 4 for b in batches)
    parts = [evaluation_batches(samples, config(order=order), 4, scales, part=slice(k, None, 3)) for k in range(3)]
    assert [[b.ids for b in part] for part in parts] == [[b.ids for b in batches[k::3]] for k in range(3)]
    alone = {b.ids[0]: b.views for b in evaluation_batches(samples, config(order=order), 1, scales)}
    for batch in batches:
        for row, name in enumerate(batch.ids):
            for scale, (images, mask), (image, own) in zip(scales, batch.views, alone[name], strict=True):
                assert int((~mask[row]).sum()) == np.round(scale * sizes[name]).prod() and images[row].any()
                if order != "area":  # the padding of an image does not depend on the rest of its batch
                    assert (images[row] == image[0]).all() and (mask[row] == own[0]).all()


@pytest.mark.parametrize("scale", [1.0, 0.4, 0.375])
@pytest.mark.parametrize("coarse", [False, True])
def test_an_image_fits_its_shape_in_every_size(scale, coarse):
    """Including thin and tiny images, and those beyond the authors' limits, whose sizes are rounded and limited."""
    draw, few = np.random.default_rng(1), (1, 5, 15, 16, 17, 33, 200, 256, 257, 500)
    sizes = [(h, w) for h in few for w in (*few, 1023, 1025, 1500, 2400) if h * w <= 320_000]
    samples = [Sample(f"{h}x{w}", ("x",), np.full((h, w), 255, np.uint8)) for h, w in sizes]
    shaped = config(coarse=coarse).model_copy(update={"data": Data(scale=scale)})
    for scales in ([1.0, 1.2], [1.3, 0.7, 1.0, 2.0], [1.0, *draw.uniform(0.5, 3, 4)]):
        batches = evaluation_batches(samples, shaped, 8, scales)
        assert sorted(name for b in batches for name in b.ids) == sorted(s.id for s in samples)
        for batch in batches:
            for images, mask in batch.views:
                assert (images[:, 0].bool() == ~mask).all()


def test_images_are_shrunk_when_loaded():
    half = config().model_copy(update={"data": Data(scale=0.5)})
    training = TrainingSet(made_up(5), half)
    for sample, stored in zip(made_up(5), training.samples, strict=True):
        assert abs(stored.image.shape[0] - sample.image.shape[0] / 2) <= 1
        assert abs(stored.image.mean() - sample.image.mean()) < 3


def test_the_coarse_grid_leaves_a_gpu_few_shapes(crohme, monkeypatch):
    """Shapes in four epochs of `gpu` on CROHME, each of which is recorded, and the share of the most frequent ones."""
    archive = open_archive(crohme)
    config, samples = resolve("comer-fusion", "gpu", 7, archive), archive.samples("train")
    grids = {coarse: config.changed({"training.batching.coarse": coarse}) for coarse in (True, False)}
    sets = {coarse: TrainingSet(samples, grid) for coarse, grid in grids.items()}
    measured, distortion = {}, sets[True].distortion
    drawn = cache(lambda epoch, index: distortion(epoch, index, config.augmentation))  # the same on either grid
    monkeypatch.setattr(TrainingSet, "distortion", lambda _, epoch, index, augmentation: drawn(epoch, index))
    for coarse, training in sets.items():
        shapes, pixels = Counter(), 0
        for epoch in (10, 40, 70, 100):
            for indices in training.plan(epoch):
                distortions = [drawn(epoch, index)[0] for index in indices]
                shape = training.shape([(d.height, d.width) for d in distortions])
                steps = padded_steps(1 + max(len(training.samples[index].tokens) for index in indices), coarse)
                shapes[len(indices), *shape, steps] += 1
                pixels += len(indices) * shape[0] * shape[1]
        served = sum(count for _, count in shapes.most_common(384)) / shapes.total()
        measured[coarse] = len(shapes), served, pixels
    (few, served, pixels), (many, fewer_served, least) = measured[True], measured[False]
    assert few < 350 and served > 0.99 and pixels < 1.1 * least
    assert many > 600 and fewer_served < 0.8


@pytest.mark.parametrize("order", ["area", "shape"])
def test_what_is_made_of_one_expression_takes_turns(order: Any) -> None:
    ours = made_up(4)
    made = [replace(sample, id=f"{sample.id}-{k}", number=k, turns=3) for sample in ours for k in range(3)]
    settings = Config(recipe="r", preset="p", training=Training(batching=Batching(order=order)))
    training = TrainingSet([*ours, *made], settings)
    for epoch in range(7):
        ids = {training.samples[i].id for batch in training.plan(epoch) for i in batch}
        assert ids == {sample.id for sample in ours} | {f"{sample.id}-{epoch % 3}" for sample in ours}


@pytest.mark.parametrize("way", ["killed", "exits"])
def test_a_lost_worker_is_one_line(way: str, monkeypatch) -> None:
    """Killed for want of memory, say: the training ends with what to do, and the same command goes on."""

    def lost(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL) if way == "killed" else os._exit(1)

    monkeypatch.setattr(TrainingSet, "prepare", lost)
    training_set = TrainingSet(made_up(), config(None))
    with pytest.raises((UserError, RuntimeError)) as raised:
        list(prepared(training_set, 0, training_set.plan(0), workers=2))
    error = raised.value
    line = worker_lost(error) if isinstance(error, RuntimeError) else str(error)  # as the trainer says it
    assert (
        "a process that prepares batches was lost (DataLoader worker" in line and "run the same command again" in line
    )
