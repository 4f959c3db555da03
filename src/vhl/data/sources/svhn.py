"""Street View House Numbers in their official form: two MATLAB files of cropped digits."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import ClassVar

import numpy as np

from vhl.data.images import Crop, Dataset, ImageSet, Mean, Std
from vhl.data.sources._official import OfficialFile, files_at
from vhl.data.sources._reading import get_command, reading
from vhl.data.sources.base import Source
from vhl.errors import VHLError

_SITE = "http://ufldl.stanford.edu/housenumbers"
_DIGESTS = {
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}


class SVHN(Source):
    """Street View House Numbers: 99,289 colour photographs of digits, 32×32 pixels.

    Netzer et al., NIPS workshop on deep learning and unsupervised feature learning, 2011.
    """

    official: ClassVar[tuple[OfficialFile, ...]] = files_at(_SITE, "svhn", _DIGESTS)
    places: ClassVar[tuple[str, ...]] = ("svhn",)

    crop: Crop = 0
    mean: Mean = (0.0,)
    std: Std = (1.0,)

    def read(self, data_dir: Path, seed: int) -> Dataset:
        train, test = (self._read_part(file, data_dir) for file in self.official)
        return Dataset(train, test, tuple(str(digit) for digit in range(10)))

    def _read_part(self, file: OfficialFile, data_dir: Path) -> ImageSet:
        """The images of an official file; no other is opened, for SciPy's reader crashes on some of them."""
        from scipy.io import loadmat  # takes a while to import

        place, remedy = data_dir / file.path, get_command(self.name, data_dir)
        with reading(place, remedy):
            raw = place.read_bytes()
            if not file.has(raw):
                raise VHLError(f"{place} is not the official file (its SHA-256 differs); {remedy}.")
            arrays = loadmat(BytesIO(raw))
        labels = arrays["y"].ravel() % 10  # MATLAB counts from 1: the digit 0 has the label 10
        images = arrays["X"].transpose(3, 0, 1, 2)  # from height, width, channel, number
        return ImageSet(np.ascontiguousarray(images), labels.astype(np.int64))
