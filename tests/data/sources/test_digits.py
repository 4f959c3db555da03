from __future__ import annotations

from pathlib import Path

import numpy as np

from vhl.data.sources.digits import Digits


def test_every_fifth_digit_is_a_test_digit_and_ink_fills_the_byte_range():
    dataset = Digits().read(Path("/nowhere"), seed=0)
    assert (len(dataset.train), len(dataset.test), dataset.train.shape) == (1438, 359, (8, 8, 1))
    assert dataset.train.labels[:5].tolist() == [0, 1, 2, 3, 5]  # the set counts 0, 1, 2, …; 4 is the fifth
    assert dataset.test.labels[0] == 4
    assert dataset.train.images.max() == 255
    assert set(np.unique(dataset.train.images)) <= {round(ink * 255 / 16) for ink in range(17)}


def test_the_default_size_is_sixteen():
    assert Digits().load(Path("/nowhere")).train.shape == (16, 16, 1)
