"""Fashion-MNIST in its official form: four gzipped IDX files."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from vhl.data.images import Crop, Dataset, ImageSet, Mean, Std
from vhl.data.sources._official import OfficialFile
from vhl.data.sources._reading import get_command, labelled, reading
from vhl.data.sources.base import Source

_FOLDER = "fashion-mnist"
_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_DIGESTS = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_CLASSES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"


class FMNIST(Source):
    """Fashion-MNIST: 70,000 grey pictures of clothes in 10 classes, 28×28 pixels.

    Brought to 32×32 in three channels by default. Xiao, Rasul and Vollgraf, arXiv:1708.07747, 2017.
    """

    official: ClassVar[tuple[OfficialFile, ...]] = tuple(
        OfficialFile(f"{_SITE}/{file}", f"{_FOLDER}/{file}", digest) for file, digest in _DIGESTS.items()
    )
    places: ClassVar[tuple[str, ...]] = (_FOLDER,)

    size: int | None = Field(32, ge=4, description="resize images to this many pixels a side; unset keeps 28")
    channels: Literal[1, 3] | None = Field(3, description="1 grey as in the files, 3 repeats it")
    crop: Crop = 0
    mean: Mean = (0.0,)
    std: Std = (1.0,)

    def read(self, data_dir: Path, seed: int) -> Dataset:
        remedy = get_command(self.name, data_dir)
        folder = data_dir / _FOLDER
        return Dataset(
            _read_part(folder, "train", remedy),
            _read_part(folder, "t10k", remedy),
            tuple(_CLASSES.split(", ")),
        )


def _read_part(folder: Path, part: str, remedy: str) -> ImageSet:
    pictures, answers = folder / f"{part}-images-idx3-ubyte.gz", folder / f"{part}-labels-idx1-ubyte.gz"
    with reading(pictures, remedy):
        images = _read_idx(pictures, dimensions=3)
    with reading(answers, remedy):
        return labelled(images[..., None], _read_idx(answers, dimensions=1), classes=10)


def _read_idx(file: Path, dimensions: int) -> np.ndarray:
    """Read an IDX file of bytes: 0, 0, type 8, number of dimensions, their big-endian sizes, the values."""
    with gzip.open(file) as stream:
        if stream.read(4) != bytes((0, 0, 8, dimensions)):
            raise ValueError("it does not start as an IDX file of bytes")
        shape = np.frombuffer(stream.read(4 * dimensions), ">u4").tolist()
        if len(shape) != dimensions or 0 in shape:
            raise ValueError("its header is cut off or empty")
        values = stream.read(math.prod(shape) + 1)  # one more than promised: reaches the end and its checksum
    if len(values) != math.prod(shape):
        raise ValueError(f"its header promises {math.prod(shape)} bytes and it holds another number")
    return np.frombuffer(values, np.uint8).reshape(shape).copy()  # writable
