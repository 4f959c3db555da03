"""FedAvg (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from vhl.algorithms.base import Algorithm, Server, Update, Vectors, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor


class FedAvg(Algorithm):
    """The average of the clients' models, weighted by their samples: w ← Σ p_i w_i (McMahan et al., 2017)."""

    weighting: Literal["samples", "uniform"] = Field(
        "samples", description="p_i: n_i / Σ n over natural samples, or 1 / |S|"
    )

    def shares(self, updates: Sequence[Update]) -> list[float]:
        sizes = [update.work.samples if self.weighting == "samples" else 1 for update in updates]
        return [size / sum(sizes) for size in sizes]

    def aggregate(self, server: Server, updates: Sequence[Update], clients: int) -> tuple[Tensor, Vectors]:
        return weighted_sum([update.parameters for update in updates], self.shares(updates)), server.state
