"""Label skew by a Dirichlet distribution (latent Dirichlet allocation)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from vhl.data.images import Dataset
from vhl.data.partitions._dealt import Dealt, by_class
from vhl.errors import VHLError


class LDA(Dealt):
    """Label skew: each class is cut by shares ~ Dirichlet(α); a small α gives very different clients.

    For each class: shuffle its images, draw p ~ Dir(α·1_K), set p to 0 for clients that already hold N/K
    images or more, renormalise, cut at the cumulative p. All of it is repeated until every client has
    ``min_size`` images. Random numbers come from NumPy's legacy generator in the order of FedML's
    ``non_iid_partition`` (He et al., 2020), so that a seed gives the split of the published experiments:
    client sizes 7615, 5142, 7498, 865, 2731, 6130, 6415, 3034, 6091, 4479 for CIFAR-10, K = 10, α = 0.1,
    seed 0. Hsu et al., "Measuring the effects of non-identical data distribution", 2019.
    """

    primary: ClassVar[str | None] = "alpha"

    alpha: float = Field(
        0.1, gt=0, allow_inf_nan=False, description="concentration α: smaller is more skewed"
    )
    min_size: int | None = Field(
        None, ge=1, description="least images a client must get; unset is the number of classes"
    )
    max_tries: int = Field(20_000, ge=1, description="draws to give up after when none reaches min_size")

    def deal(self, dataset: Dataset, seed: int) -> list[np.ndarray]:
        images, least = len(dataset.train), self.min_size or len(dataset.classes)
        wish = f"{images} training images over {self.clients} clients with at least {least} each"
        if self.clients * least > images:
            raise VHLError(
                f"No partition of {wish} exists; lower partition.clients, or set partition.min_size to "
                f"{images // self.clients} at most."
            )
        random, nearest = _legacy_generator(seed), 0
        piles = self.piles(dataset)
        for _ in range(self.max_tries):
            shuffled = [pile.copy() for pile in piles]  # every try starts from the original order
            counts = self._shuffle_and_count(shuffled, random)
            smallest = 0 if counts is None else int(counts.sum(0).min())
            if counts is not None and smallest >= least:
                return _hand_out(shuffled, counts)
            nearest = max(nearest, smallest)
        raise VHLError(
            f"None of {self.max_tries} draws at alpha = {self.alpha:g} dealt {wish} (the best left a client "
            f"{nearest}); raise partition.alpha or partition.max_tries, or lower partition.clients or "
            f"partition.min_size."
        )

    def piles(self, dataset: Dataset) -> list[np.ndarray]:
        """The indices that are shared out together: here, those of one class."""
        return by_class(dataset)

    def _shuffle_and_count(self, piles: list[np.ndarray], random: np.random.RandomState) -> np.ndarray | None:
        """Shuffle each pile in place and draw how much of it each client gets (piles × clients).

        None where α is so small that all shares underflow.
        """
        counts = np.zeros((len(piles), self.clients), np.int64)
        held = np.zeros(self.clients, np.int64)
        full = sum(map(len, piles)) / self.clients
        for pile, row in zip(piles, counts, strict=True):
            random.shuffle(pile)
            shares = np.where(held < full, random.dirichlet(np.full(self.clients, self.alpha)), 0)
            if not len(pile):
                continue
            total = shares.sum()
            if not 0 < total < np.inf:  # shares underflowed (NaN, infinity), or only full clients got one
                return None
            ends = (np.cumsum(shares / total) * len(pile)).astype(np.int64)
            ends[-1] = len(pile)  # rounding must not lose the last image
            row[:] = np.diff(ends, prepend=0)
            held += row
        return counts


def _legacy_generator(seed: int) -> np.random.RandomState:
    if not 0 <= seed < 2**32:
        raise VHLError(
            f"Seed {seed} does not fit NumPy's legacy generator; choose one from 0 to {2**32 - 1}."
        )
    return np.random.RandomState(seed)


def _hand_out(piles: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    cut = [np.split(pile, np.cumsum(row)[:-1]) for pile, row in zip(piles, counts, strict=True)]
    return [np.concatenate(hand) for hand in zip(*cut, strict=True)]
