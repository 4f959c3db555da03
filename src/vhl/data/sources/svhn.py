"""Street View House Numbers in their official form: two MATLAB files of cropped digits."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from vhl.data.images import Crop, Dataset, ImageSet, Mean, Std
from vhl.data.sources._matlab import read_arrays
from vhl.data.sources._official import OfficialFile
from vhl.data.sources._reading import get_command, labelled, reading
from vhl.data.sources.base import Source

_FOLDER = "svhn"
_SITE = "http://ufldl.stanford.edu/housenumbers"
_DIGESTS = {
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}


class SVHN(Source):
    """Street View House Numbers: 99,289 colour photographs of digits, 32×32 pixels.

    Netzer et al., NIPS workshop on deep learning and unsupervised feature learning, 2011.
    """

    official: ClassVar[tuple[OfficialFile, ...]] = tuple(
        OfficialFile(f"{_SITE}/{file}", f"{_FOLDER}/{file}", digest) for file, digest in _DIGESTS.items()
    )
    places: ClassVar[tuple[str, ...]] = (_FOLDER,)

    crop: Crop = 0
    mean: Mean = (0.0,)
    std: Std = (1.0,)

    def read(self, data_dir: Path, seed: int) -> Dataset:
        remedy = get_command(self.name, data_dir)
        train, test = (_read_part(data_dir / _FOLDER / file, remedy) for file in _DIGESTS)
        return Dataset(train, test, tuple(str(digit) for digit in range(10)))


def _read_part(file: Path, remedy: str) -> ImageSet:
    with reading(file, remedy):
        arrays = read_arrays(file.read_bytes())
        images, labels = _array(arrays, "X", 4), _array(arrays, "y", 2).ravel()
        if images.dtype != np.uint8 or images.shape[2] != 3:
            raise ValueError("X must be 8-bit colour images")
        labels = np.where(labels == 10, 0, labels)  # MATLAB counts from 1: the digit 0 is 10
        return labelled(np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels, 10)


def _array(arrays: dict[str, np.ndarray], key: str, dimensions: int) -> np.ndarray:
    array = arrays.get(key)
    if array is None or array.ndim != dimensions or not array.size:
        raise ValueError(f"it holds no array {key} of {dimensions} dimensions")
    return array
