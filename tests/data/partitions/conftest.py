from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vhl.data.images import Dataset, ImageSet


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., Dataset]:
    """A dataset of one-pixel images with the given training labels; class c is called "class c"."""

    def make(labels, classes, sites=None, site_names=()) -> Dataset:
        labels = np.asarray(labels, np.int64)
        train = ImageSet(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, sites)
        names = tuple(f"class {label}" for label in range(classes))
        return Dataset(train, train.take(np.arange(0)), names, tuple(site_names))

    return make
