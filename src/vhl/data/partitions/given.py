"""Clients that the data name themselves."""

from __future__ import annotations

import numpy as np

from vhl.data.images import Dataset
from vhl.data.partitions.base import Partition, grouped
from vhl.errors import VHLError


class Given(Partition):
    """The data already belong to clients: one client a site, in the order of the data's site names."""

    def assign(self, dataset: Dataset, seed: int) -> list[np.ndarray]:
        sites = dataset.train.sites
        if sites is None or not dataset.sites:
            raise VHLError(
                "partition = given needs data that name a site for each image, and these do not; use "
                "folder:PATH with PATH/SITE/CLASS/image, an npz with an array `sites`, or another partition."
            )
        parts = grouped(sites, len(dataset.sites))
        empty = [repr(name) for name, part in zip(dataset.sites, parts, strict=True) if not len(part)]
        if empty:
            raise VHLError(
                f"No training image belongs to site {', '.join(empty)}; give each site one at least, or take "
                f"those without from the data."
            )
        return parts
