"""Clients of different sizes."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from vhl.data.images import Dataset
from vhl.data.partitions.lda import LDA


class Quantity(LDA):
    """Quantity skew: client sizes ~ Dirichlet(α), every client with the labels of the whole.

    LDA with all classes in one shuffled pile: p ~ Dir(α·1_K) cuts the N images at the cumulative p, again
    until every client has ``min_size``. Li et al., "Federated learning on non-IID data silos", 2022.
    """

    alpha: float = Field(
        0.5, gt=0, allow_inf_nan=False, description="concentration α: smaller is more unequal"
    )

    def piles(self, dataset: Dataset) -> list[np.ndarray]:
        return [np.arange(len(dataset.train))]
