"""A few classes a client."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from vhl.data.images import Dataset
from vhl.data.partitions._dealt import Dealt, by_class, deal_counts, evenly
from vhl.errors import VHLError


class Classes(Dealt):
    """Pathological label skew: each client holds a few classes only, 2 in the paper.

    Client i holds class i mod C and ``per_client`` − 1 random others; with fewer clients than classes, those
    that nobody holds yet are handed out first. A class is split evenly among its holders, so every image is
    used (the authors' code). With ``samples``, a client gets that many in all, evenly over its classes, and
    the rest is left out (the paper's text: 500). After McMahan et al., AISTATS 2017.
    """

    primary: ClassVar[str | None] = "per_client"

    per_client: int = Field(2, ge=1, description="classes a client holds")
    samples: int | None = Field(
        None, ge=1, description="images a client, evenly over its classes; unset deals out every image"
    )

    def deal(self, dataset: Dataset, seed: int) -> list[np.ndarray]:
        members = by_class(dataset)
        sizes = np.array([len(own) for own in members])
        self._refuse_impossible(len(members))
        random = np.random.default_rng(seed)
        holds = self._choose_classes(len(members), random)
        counts = _share(holds, sizes) if self.samples is None else _ration(holds, self.samples)
        needed = np.maximum(counts, holds).sum(0)  # each holder of a class needs one image of it at least
        if (needed > sizes).any():
            short = int(np.argmax(needed > sizes))
            raise VHLError(
                f"Class {dataset.classes[short]!r} has {sizes[short]} training images and the "
                f"{holds[:, short].sum()} clients that hold it need {needed[short]}; "
                f"lower partition.clients{' or partition.samples' if self.samples else ''}."
            )
        return deal_counts(members, counts, random)

    def _refuse_impossible(self, classes: int) -> None:
        held = self.clients * self.per_client
        if self.per_client > classes:
            raise VHLError(
                f"A client cannot hold {self.per_client} classes of data that have {classes}; "
                f"set partition.per_client to {classes} at most."
            )
        if self.samples is not None and self.samples < self.per_client:
            raise VHLError(
                f"{self.samples} images a client cannot cover {self.per_client} classes; "
                f"set partition.samples to {self.per_client} at least, or lower partition.per_client."
            )
        if self.samples is None and held < classes:
            raise VHLError(
                f"{self.clients} clients with {self.per_client} classes each leave {classes - held} of "
                f"{classes} classes to nobody; raise partition.clients or partition.per_client, or set "
                f"partition.samples (images a client) to leave images out."
            )

    def _choose_classes(self, classes: int, random: np.random.Generator) -> np.ndarray:
        """Which client holds which class: booleans (clients × classes), ``per_client`` true in each row."""
        holds = np.zeros((self.clients, classes), bool)
        every = np.arange(self.clients)
        holds[every, every % classes] = True
        nobodys = random.permutation(np.arange(self.clients, classes))[: self.clients * (self.per_client - 1)]
        holds[np.arange(len(nobodys)) % self.clients, nobodys] = True
        for row in holds:
            others = np.flatnonzero(~row)
            row[random.choice(others, self.per_client - row.sum(), replace=False)] = True
        return holds


def _share(holds: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Split each class evenly among its holders."""
    counts = np.zeros(holds.shape, np.int64)
    for label, size in enumerate(sizes):
        holders = holds[:, label]
        counts[holders, label] = evenly(size, holders.sum())
    return counts


def _ration(holds: np.ndarray, samples: int) -> np.ndarray:
    """Split each client's ``samples`` evenly over the classes it holds."""
    counts = np.zeros(holds.shape, np.int64)
    for row, held in zip(counts, holds, strict=True):
        row[held] = evenly(samples, held.sum())
    return counts
