"""SCAFFOLD (Karimireddy et al., ICML 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from vhl.algorithms.base import Client, Server, Update, Vectors, Work, weighted_sum
from vhl.algorithms.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor


class SCAFFOLD(FedAvg):
    """FedAvg with control variates that cancel each client's drift (Karimireddy et al., 2020, option II).

    Each step: w ← w − η(c − c_i), outside momentum (inside, it diverges). After the round:
    c_i⁺ = c_i − c + (w_g − w_i)/(τη), and c ← c + s · mean(c_i⁺ − c_i) with s = |S|/K.

    The mean is over clients alike, as in the paper: without momentum its optimum is that of the mean over
    clients, whatever the weighting of models.
    """

    release = {"server_step": "full"}

    server_step: Literal["participation", "full"] = Field(
        "participation", description="s, the server's step of c: |S|/K, or 1"
    )
    divisor: Literal["steps", "accumulated"] = Field(
        "steps", description="τ of c_i⁺: steps, or FedNova's a, which counts what momentum adds"
    )

    def server_state(self, parameters: Tensor) -> Vectors:
        return {"control": parameters.new_zeros(parameters.shape)}

    def client_state(self, server: Server) -> Vectors:
        return self.server_state(server.parameters)

    def correct_weights(self, weights: Tensor, rate: Tensor, client: Client) -> None:
        weights.addcmul_(client.received["control"], rate, value=-1)
        weights.addcmul_(client.state["control"], rate)

    def finish(self, weights: Tensor, client: Client, work: Work) -> tuple[Vectors, Vectors]:
        steps = work.steps if self.divisor == "steps" else work.accumulated
        change = (client.start - weights) / (steps * work.rate) - client.received["control"]
        return {"control_change": change}, {"control": client.state["control"] + change}

    def aggregate(self, server: Server, updates: Sequence[Update], clients: int) -> tuple[Tensor, Vectors]:
        parameters, _ = super().aggregate(server, updates, clients)
        step = len(updates) / clients if self.server_step == "participation" else 1.0
        changes = [update.message["control_change"] for update in updates]
        mean_change = weighted_sum(changes, [1 / len(updates)] * len(updates))
        return parameters, {"control": server.state["control"] + step * mean_change}
