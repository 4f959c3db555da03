"""All data in one place."""

from __future__ import annotations

import numpy as np

from vhl.data.images import Dataset
from vhl.data.partitions.base import Partition


class Centralized(Partition):
    """One client holds every image: ordinary training, the yardstick of the federated runs."""

    def assign(self, dataset: Dataset, seed: int) -> list[np.ndarray]:
        return [np.arange(len(dataset.train))]
