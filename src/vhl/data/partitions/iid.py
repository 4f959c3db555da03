"""Clients that all look alike."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from vhl.data.images import Dataset
from vhl.data.partitions._dealt import Dealt


class IID(Dealt):
    """No skew: the images are shuffled and dealt out in equal parts."""

    primary: ClassVar[str | None] = "clients"

    def deal(self, dataset: Dataset, seed: int) -> list[np.ndarray]:
        order = np.random.default_rng(seed).permutation(len(dataset.train))
        return np.array_split(order, self.clients)
