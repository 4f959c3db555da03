"""FedNova (Wang et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vhl.algorithms.base import Server, Update, Vectors, weighted_sum
from vhl.algorithms.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor

    from vhl.config.sections import Training


class FedNova(FedAvg):
    """FedAvg that counts steps: clients which took more of them do not pull harder (Wang et al., 2020).

    d_i = (w_g − w_i)/a_i with a_i = [τ − m(1 − m^τ)/(1 − m)]/(1 − m), then
    w ← w − (Σ p_i a_i)(Σ p_i d_i); batch-norm statistics are averaged plainly.
    """

    def aggregate(self, server: Server, updates: Sequence[Update], clients: int) -> tuple[Tensor, Vectors]:
        shares = self.shares(updates)
        lengths = [update.work.accumulated for update in updates]
        effective = sum(share * length for share, length in zip(shares, lengths, strict=True))
        moves = [server.parameters - update.parameters for update in updates]
        scales = [effective * share / length for share, length in zip(shares, lengths, strict=True)]
        return server.parameters - weighted_sum(moves, scales), server.state

    def notes(self, training: Training) -> list[str]:
        if training.keep_momentum and training.momentum:
            return [
                "FedNova's a_i assumes momentum that starts at zero each round; keep_momentum breaks that."
            ]
        return []
