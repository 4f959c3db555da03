"""One dominant class a client."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from vhl.data.images import Dataset
from vhl.data.partitions._dealt import Dealt, by_class, deal_counts, evenly
from vhl.errors import VHLError


class Subset(Dealt):
    """Every client has all classes, but nearly all images of one dominant class.

    Client i's dominant class is i mod C. The clients that a class dominates share ``dominant`` of its images
    evenly, the other clients share the rest: 4,950 of one class and 5 or 6 of each other for CIFAR-10 and 10
    clients (VHL, section 5.1). After Zhao et al., "Federated learning with non-IID data", 2018.
    """

    primary: ClassVar[str | None] = "dominant"

    dominant: float = Field(
        0.99, gt=0, le=1, description="share of a class's images that go to the clients it dominates"
    )

    def deal(self, dataset: Dataset, seed: int) -> list[np.ndarray]:
        members = by_class(dataset)
        classes = len(members)
        if classes < 2:
            raise VHLError(
                "One class cannot dominate others where the data have no others; use partition = iid."
            )
        if self.clients < classes:
            raise VHLError(
                f"{self.clients} clients leave {classes - self.clients} of {classes} classes dominant "
                f"nowhere; set partition.clients to {classes} at least."
            )
        counts = np.stack(
            [self._share(dataset.classes, label, len(own)) for label, own in enumerate(members)], axis=1
        )
        return deal_counts(members, counts, np.random.default_rng(seed))

    def _share(self, classes: tuple[str, ...], label: int, images: int) -> np.ndarray:
        """How many of a class's images each client gets."""
        # Starting after the class's own client hands the remainders round, so that sizes stay equal.
        clients = np.roll(np.arange(self.clients), -label - 1)
        dominated = clients % len(classes) == label
        owners, others = clients[dominated], clients[~dominated]
        share = round(self.dominant * images)
        if share < len(owners):
            raise VHLError(
                f"{share} of the {images} training images of class {classes[label]!r} cannot go to the "
                f"{len(owners)} clients it dominates; lower partition.clients or raise partition.dominant."
            )
        counts = np.empty(self.clients, np.int64)
        counts[owners] = evenly(share, len(owners))
        counts[others] = evenly(images - share, len(others))
        return counts
