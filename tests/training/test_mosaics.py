from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vhl.algorithms.base import Update, Work
from vhl.chance import Purpose, words
from vhl.data.images import ImageSet, ImageStream
from vhl.rounds.clients import Order
from vhl.rounds.metrics import describe_training
from vhl.rounds.simulation import Simulation
from vhl.training.mosaics import MosaicStream, assemble
from vhl.training.streams import Stream

CPU = torch.device("cpu")
PLAIN = (np.zeros(1), np.full(1, 1 / 255))
"""Statistics that leave pixels as they are."""


def images(count: int, labels: list[int], size: int = 8) -> ImageSet:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, size, size, 1), dtype=np.uint8)
    return ImageSet(pixels, np.resize(np.array(labels, np.int64), count))


def test_a_mosaic_has_its_images_row_by_row() -> None:
    small = torch.arange(8 * 2 * 3).view(8, 2, 3, 1)
    mosaics = assemble(small, 2)
    assert mosaics.shape == (2, 4, 6, 1)
    for number in range(8):
        mosaic, row, column = number // 4, number // 2 % 2, number % 2
        tile = mosaics[mosaic, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
        assert torch.equal(tile, small[number])


@pytest.mark.parametrize("crop", [None, 4])
def test_crop_flip_and_cutout_act_on_each_tile(crop: int | None) -> None:
    """As on the small images alone; a crop and a square of so many pixels are a mosaic's."""
    small = images(6, [0, 1], size=16)
    settings = ImageStream(name="any", flip=True, crop=crop, cutout=6)
    mosaics = MosaicStream(small, settings, PLAIN, CPU, tiles=2, of_one_class=False)
    alone = Stream(small, ImageStream(name="any", flip=True, crop=2, cutout=3), PLAIN, CPU)
    assert mosaics.padding == 2 and mosaics.shape == (16, 16, 1)
    index = torch.tensor([3, 0, 5, 5, 1, 2, 4, 0])
    drawn = words(1, Purpose.VIRTUAL, 0, 0, 0, torch.arange(8))
    chosen, others = mosaics.choices(drawn), alone.choices(drawn)
    assert all(chosen[key].equal(others[key]) for key in chosen.keys() | others.keys())
    found, expected = mosaics.batch(index, chosen), alone.batch(index, chosen)
    assert found.shape == (2, 1, 32, 32) and len(chosen["row"].unique()) > 1
    for number in range(8):
        mosaic, row, column = number // 4, number // 2 % 2, number % 2
        tile = found[mosaic, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        assert torch.equal(tile, expected[number])


@pytest.mark.parametrize("of_one_class", [False, True])
def test_order(of_one_class: bool) -> None:
    """A shuffled pass; or mosaics of one class each, themselves in random order."""
    whole = images(60, [0, 1, 2])
    stream = MosaicStream(whole, ImageStream(name="any"), PLAIN, CPU, tiles=2, of_one_class=of_one_class)
    order = stream.shuffled(2, Purpose.VIRTUAL_ORDER, 1)
    assert sorted(order.tolist()) == list(range(60))
    groups = order.view(-1, 4)
    labels = stream.labels[groups]
    assert bool((labels == labels[:, :1]).all()) == of_one_class
    assert labels[:, 0].unique_consecutive().numel() > 6  # not class by class
    assert (groups.diff(dim=1) < 0).any(), "members are shuffled"
    assert not order.equal(stream.shuffled(2, Purpose.VIRTUAL_ORDER, 2))


def test_a_class_too_small_for_a_mosaic_is_named(complains: Any) -> None:
    few = ImageSet(images(7, [0]).images, np.array([0, 0, 0, 0, 1, 1, 1]))
    options = ImageStream(name="any"), PLAIN, CPU
    with complains("a virtual class has 3 images, fewer than the 4 of a mosaic"):
        MosaicStream(few, *options, tiles=2, of_one_class=True)
    mixed = MosaicStream(few, *options, tiles=2, of_one_class=False)
    assert len(mixed.shuffled(0, Purpose.VIRTUAL_ORDER, 0)) == 7


# --- in training ---------------------------------------------------------------------------------------


def parameters(simulation: Simulation) -> torch.Tensor:
    list(simulation)
    server = simulation.state.server
    return torch.cat([server.parameters, server.buffers])


def test_a_mosaic_takes_a_quarter_of_the_places(digit_simulation: Any) -> None:
    light = digit_simulation(objective={"name": "vhl-light", "virtual_batch": 8})
    full = digit_simulation(objective={"name": "vhl", "virtual_batch": 8})
    assert light.setup.compute == pytest.approx(1.25 / 2 * full.setup.compute)
    (record, *_), (twice, *_) = list(light), list(full)
    natural = sum(light.setup.sizes[client] for client in record.clients)
    assert record.samples - natural == (twice.samples - natural) // 4
    assert record.virtual_accuracy is not None and 0 <= record.virtual_accuracy <= 1


def test_virtual_accuracy_is_of_all_tiles(digit_simulation: Any) -> None:
    """3 steps of 8 virtual images: 12 hits are a half."""
    setup = digit_simulation(objective={"name": "vhl-light", "virtual_batch": 8}).setup
    update = Update(0, Work(20, 3, 0.1, 0.9), torch.zeros(1), torch.zeros(1), {})
    totals = {"natural_hits": 5.0, "virtual_hits": 12.0}
    known = describe_training(setup, [Order(0, 0, 0.1, {})], [update], totals)
    assert known["virtual_accuracy"] == 0.5 and known["train_accuracy"] == 0.25


def test_lanes_and_resuming_do_not_change_it(digit_simulation: Any) -> None:
    whole = parameters(digit_simulation(objective="vhl-light"))
    again = parameters(digit_simulation(objective="vhl-light", engine={"lanes": 3}))
    assert torch.equal(whole, again)
    begun = digit_simulation(objective="vhl-light")
    begun.run_round()
    continued = digit_simulation(objective="vhl-light", state=begun.state)
    assert torch.equal(parameters(continued), whole)


def test_tiles_are_made_at_their_own_size(digit_simulation: Any) -> None:
    """As the generator makes them for images so small, not down-sampled; and looked at like that."""
    setup = digit_simulation(objective="vhl-light").setup
    generator, seed = setup.experiment.virtual, setup.experiment.seeds.data
    made = generator.generate(setup.classes, generator.count_per_class(setup.classes), (4, 4, 1), seed)
    assert np.array_equal(setup.virtual.images.images, made.images)
    assert setup.virtual.plain.shape == setup.virtual.train.shape == (4, 4, 1)
    assert (setup.virtual.train.tiles, setup.virtual.plain.tiles) == (2, 1)


@pytest.mark.parametrize("option", [{"mosaic_classes": "same"}, {"mosaic": 1}, {"batch_norm_share": 0.75}])
def test_every_option_has_an_effect(digit_simulation: Any, option: dict[str, Any]) -> None:
    usual = parameters(digit_simulation(objective="vhl-light"))
    assert not torch.equal(parameters(digit_simulation(objective={"name": "vhl-light", **option})), usual)
