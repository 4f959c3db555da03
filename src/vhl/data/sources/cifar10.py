"""CIFAR-10."""

from __future__ import annotations

from typing import ClassVar

from vhl.data.images import Mean, Std
from vhl.data.sources._cifar import CifarSource, Distribution
from vhl.data.sources._official import Fingerprint, OfficialFile

_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


class CIFAR10(CifarSource):
    """CIFAR-10: 60,000 colour photographs in 10 classes, 32×32 pixels.

    Krizhevsky, Learning multiple layers of features from tiny images, 2009.
    """

    official: ClassVar[tuple[OfficialFile, ...]] = (
        OfficialFile(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    )
    distributions: ClassVar[tuple[Distribution, ...]] = (
        Distribution(
            "cifar-10-binary.tar.gz",
            "cifar-10-batches-bin",
            tuple(f"{batch}.bin" for batch in _BATCHES),
            "test_batch.bin",
            pickled=False,
        ),
        Distribution("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES, "test_batch", pickled=True),
    )
    places: ClassVar[tuple[str, ...]] = (*distributions[0].places, *distributions[1].places)
    fingerprint: ClassVar[Fingerprint | None] = Fingerprint(
        train="67e12c2a5906880a4fe5595fe6d768185ad7ca587f35d3a7ece3c3b8b85035d2",
        test="7742db831caeba84ea1d4663e0d07ca1879cbb76e501e036935be5fd5506749b",
    )
    label_bytes: ClassVar[int] = 1
    label_key: ClassVar[str] = "labels"
    class_names: ClassVar[tuple[str, ...]] = tuple(_CLASSES.split())

    mean: Mean = (0.4914, 0.4822, 0.4465)
    std: Std = (0.2470, 0.2435, 0.2616)
