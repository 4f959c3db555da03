"""Optimisers on the server: FedAvgM (Hsu et al., 2019); FedAdagrad, FedAdam, FedYogi (Reddi et al., 2021).

Their defaults are those papers'; the learning rates are what Reddi et al. found best on CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from vhl.algorithms.base import Server, Update, Vectors
from vhl.algorithms.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor


class _ServerOptimizer(FedAvg):
    """The round's move Δ = Σ p_i w_i − w is a gradient to the server; what it keeps stays there."""

    server_lr: float = Field(1.0, gt=0, description="η: the server's learning rate")

    def sent(self, state: Vectors) -> Vectors:
        return {}

    def aggregate(self, server: Server, updates: Sequence[Update], clients: int) -> tuple[Tensor, Vectors]:
        average, _ = super().aggregate(server, updates, clients)
        step, state = self.step(average - server.parameters, server.state)
        return server.parameters + self.server_lr * step, state

    def step(self, move: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        """Where to go for this move, and what to remember."""
        raise NotImplementedError


class FedAvgM(_ServerOptimizer):
    """FedAvg with momentum on the server: v ← βv + Δ, w ← w + ηv (Hsu et al., 2019)."""

    server_momentum: float = Field(0.9, ge=0, lt=1, description="β: how much of the last velocity is kept")

    def server_state(self, parameters: Tensor) -> Vectors:
        return {"velocity": parameters.new_zeros(parameters.shape)}

    def step(self, move: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        velocity = self.server_momentum * state["velocity"] + move
        return velocity, {"velocity": velocity}


class _Adaptive(_ServerOptimizer):
    """m ← β₁m + (1 − β₁)Δ and w ← w + ηm/(√v + τ), where methods differ in v (Reddi et al., algorithm 2)."""

    beta1: float = Field(0.9, ge=0, lt=1, description="β₁: how much of the mean move is kept")
    tau: float = Field(1e-3, gt=0, description="τ: the larger, the less steps adapt; v begins at τ²")

    def server_state(self, parameters: Tensor) -> Vectors:
        zeros = parameters.new_zeros(parameters.shape)
        return {"mean": zeros, "square": zeros + self.tau**2}

    def step(self, move: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        mean = self.beta1 * state["mean"] + (1 - self.beta1) * move
        square = self.square(state["square"], move.square())
        return mean / (square.sqrt() + self.tau), {"mean": mean, "square": square}

    def square(self, square: Tensor, new: Tensor) -> Tensor:
        """The next v, from v and Δ²."""
        raise NotImplementedError


class FedAdagrad(_Adaptive):
    """Adagrad on the server: v ← v + Δ² (Reddi et al., 2021)."""

    server_lr: float = Field(0.1, gt=0, description="η: the server's learning rate")
    beta1: float = Field(0.0, ge=0, lt=1, description="β₁: how much of the mean move is kept")

    def square(self, square: Tensor, new: Tensor) -> Tensor:
        return square + new


class _Forgetful(_Adaptive):
    server_lr: float = Field(0.01, gt=0, description="η: the server's learning rate")
    beta2: float = Field(0.99, ge=0, lt=1, description="β₂: how much of v is kept")


class FedAdam(_Forgetful):
    """Adam on the server: v ← β₂v + (1 − β₂)Δ² (Reddi et al., 2021)."""

    def square(self, square: Tensor, new: Tensor) -> Tensor:
        return self.beta2 * square + (1 - self.beta2) * new


class FedYogi(_Forgetful):
    """Yogi on the server: v ← v − (1 − β₂)Δ² sign(v − Δ²) (Reddi et al., 2021)."""

    def square(self, square: Tensor, new: Tensor) -> Tensor:
        return square - (1 - self.beta2) * new * (square - new).sign()
