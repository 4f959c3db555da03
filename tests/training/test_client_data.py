from __future__ import annotations

import numpy as np
import pytest
import torch

from vhl.data.images import ImageSet, ImageStream
from vhl.objectives.virtual_batch import VirtualBatch
from vhl.training.client_data import ClientData, VirtualData
from vhl.training.mosaics import MosaicStream
from vhl.training.precision import Precision
from vhl.training.streams import Stream
from vhl.virtual.noise import Noise

PRECISION = Precision(torch.device("cpu"), "fp64")
IMAGES = ImageSet(np.random.default_rng(0).integers(0, 256, (12, 8, 8, 1), np.uint8), np.arange(12) % 3)


def test_each_client_has_its_part():
    parts = [np.array([7, 1]), np.array([3]), np.array([0, 11, 4])]
    statistics = np.array([0.5]), np.array([0.25])
    data = ClientData.of(IMAGES, parts, ImageStream(crop=2), statistics, PRECISION)
    assert [part.tolist() for part in data.parts] == [[7, 1], [3], [0, 11, 4]]
    found = data.images.plain().batch(data.parts[2], {})
    expected = (IMAGES.images[parts[2]] / 255 - 0.5) / 0.25
    np.testing.assert_allclose(found.permute(0, 2, 3, 1), expected, rtol=1e-12)
    assert found.dtype == torch.float64 and data.images.padding == 2


@pytest.mark.parametrize("batch", [None, VirtualBatch(4), VirtualBatch(4, tiles=2), VirtualBatch(4, 2, True)])
def test_virtual_images_are_there_to_train_on_and_as_they_are(batch):
    """Mosaics are for training alone."""
    generator = Noise(mean=(0.4,), std=(0.2,), crop=2, flip=True)
    data = VirtualData.of(IMAGES, generator, batch, PRECISION)
    tiles = 1 if batch is None else batch.tiles
    assert type(data.train) is (Stream if tiles == 1 else MosaicStream)
    assert (data.train.tiles, data.train.padding, data.train.flip) == (tiles, 2 // tiles, True)
    for stream in (data.plain, data.train.plain()):
        expected = (IMAGES.images / 255 - 0.4) / 0.2
        found = stream.batch(torch.arange(12), {})
        np.testing.assert_allclose(found.permute(0, 2, 3, 1), expected, rtol=1e-12)
