"""scikit-learn's bundled handwritten digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from vhl.data.images import Dataset, ImageSet
from vhl.data.sources.base import Source


class Digits(Source):
    """1,797 handwritten digits of 8×8 pixels that come with scikit-learn: no download.

    Every fifth image is a test image. Alpaydin and Kaynak, UCI repository, 1998.
    """

    size: int | None = Field(16, ge=4, description="resize images to this many pixels a side; unset keeps 8")

    def read(self, data_dir: Path, seed: int) -> Dataset:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]
        labels = digits.target.astype(np.int64)
        is_test = np.arange(len(labels)) % 5 == 4
        train = ImageSet(images[~is_test], labels[~is_test])
        test = ImageSet(images[is_test], labels[is_test])
        return Dataset(train, test, tuple(str(digit) for digit in range(10)))
