"""The images that clients train on, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vhl.data.images import ImageSet, ImageStream
from vhl.objectives.virtual_batch import VirtualBatch
from vhl.training.mosaics import MosaicStream
from vhl.training.precision import Precision
from vhl.training.streams import Stream
from vhl.virtual.base import Generator

Statistics = tuple[np.ndarray, np.ndarray]
"""Channel means and deviations to normalise with."""


@dataclass(frozen=True)
class ClientData:
    """The natural training images, and which of them each client holds."""

    images: Stream
    parts: Sequence[Tensor]
    """Of each client, as indices; all of them lie in one vector."""

    @classmethod
    def of(
        cls,
        images: ImageSet,
        parts: Sequence[np.ndarray],
        settings: ImageStream,
        statistics: Statistics,
        precision: Precision,
    ) -> ClientData:
        stream = Stream(images, settings, statistics, precision.device, dtype=precision.dtype)
        every = torch.from_numpy(np.concatenate(parts)).to(precision.device)
        return cls(stream, every.split([len(part) for part in parts]))


@dataclass(frozen=True)
class VirtualData:
    """The virtual images."""

    images: ImageSet
    train: Stream
    """As clients train on them."""
    plain: Stream
    """As they are."""

    @classmethod
    def of(
        cls, images: ImageSet, generator: Generator, batch: VirtualBatch | None, precision: Precision
    ) -> VirtualData:
        """``batch`` says whether clients train on mosaics of them."""
        device, dtype = precision.device, precision.dtype
        statistics = generator.statistics(images.images)
        plain = Stream(images, generator, statistics, device, augment=False, dtype=dtype)
        if batch is None or batch.tiles == 1:
            return cls(images, Stream(images, generator, statistics, device, dtype=dtype), plain)
        mosaics = MosaicStream(
            images,
            generator,
            statistics,
            device,
            tiles=batch.tiles,
            of_one_class=batch.one_class,
            dtype=dtype,
        )
        return cls(images, mosaics, plain)
