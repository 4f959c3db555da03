"""FedProx (Li et al., MLSys 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from vhl.algorithms.base import Client
from vhl.algorithms.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor


class FedProx(FedAvg):
    """FedAvg with a pull towards the round's start, (μ/2)‖w − w_g‖² (Li et al., 2020)."""

    release = {"mu": 1.0}

    mu: float = Field(0.1, ge=0, description="μ: strength of the pull; 0 is FedAvg")

    def correct_gradient(self, gradient: Tensor, weights: Tensor, client: Client) -> None:
        gradient.add_(weights - client.start, alpha=self.mu)
