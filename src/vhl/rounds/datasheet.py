"""What the server knows of the clients' data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhl.data.images import Dataset
from vhl.training.client_data import Statistics
from vhl.virtual.base import Shape


@dataclass(frozen=True)
class DataSheet:
    """Of all clients' data names and numbers, but no image."""

    classes: tuple[str, ...]
    sites: tuple[str, ...]
    """Names of the clients, where the data have any."""
    shape: Shape
    statistics: Statistics
    counts: np.ndarray
    """Training images of each class at each client: (clients × classes)."""
    test_samples: int
    fingerprint: str
    """Of the training images."""
    remarks: tuple[str, ...] = ()
    """Sentences about the files that a user should read."""
    deployment: Mapping[str, Any] = field(default_factory=dict)
    """What a run folder needs to know of sites, if clients are any."""

    @classmethod
    def of(cls, dataset: Dataset, counts: np.ndarray, statistics: Statistics) -> DataSheet:
        """Of data that are all here."""
        return cls(
            dataset.classes,
            dataset.sites,
            dataset.train.shape,
            statistics,
            counts,
            len(dataset.test),
            dataset.train.fingerprint(),
            dataset.remarks,
        )
