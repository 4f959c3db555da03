"""From floating-point images to stored bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vhl.virtual._pixels import assemble, resize, to_bytes


def test_to_bytes_clamps_rounds_and_moves_channels_last():
    images = torch.tensor([[-1.0, 0.0, 0.2], [1.0, 7.0, 0.1]])[None, :, None, :]  # 1 image, 2 channels, 1×3
    stored = to_bytes(images)
    assert stored.dtype == np.uint8
    assert stored.tolist() == [[[[0, 255], [0, 255], [51, 26]]]]  # 0.1·255 = 25.5 in exact numbers


def test_to_bytes_leaves_its_input_alone():
    images = torch.tensor([[[[0.25, 2.0]]]])
    to_bytes(images)
    assert images.tolist() == [[[[0.25, 2.0]]]]


@pytest.mark.parametrize("size", [(5, 9), (16, 16), (40, 24)])
def test_resize_agrees_with_pillow(size):
    image = np.random.default_rng(0).random((16, 16), np.float32)
    ours = resize(torch.from_numpy(image)[None, None], *size)[0, 0].numpy()
    theirs = Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_allclose(ours, np.asarray(theirs), atol=1e-5)


def test_assemble_asks_for_every_part_once_and_reports_it():
    labels, calls, seen = np.array([0, 0, 1, 1, 2]), [], []

    def make(part: slice) -> torch.Tensor:
        seen.append((part.start, part.stop))
        return torch.from_numpy(labels[part] / 255.0)[:, None, None, None].expand(-1, 2, 1, 3)

    images = assemble(labels, (1, 3, 2), make, chunk=2, progress=lambda *done: calls.append(done))
    assert seen == [(0, 2), (2, 4), (4, 5)]
    assert calls == [(2, 5), (4, 5), (5, 5)]
    assert images.shape == (1, 3, 2)
    assert images.images[:, 0, 2, 1].tolist() == [0, 0, 1, 1, 2]
    assert images.labels.tolist() == [0, 0, 1, 1, 2]
