"""FedDyn (Acar et al., ICLR 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from vhl.algorithms.base import FINAL, Client, Server, Update, Vectors, Work, weighted_sum
from vhl.algorithms.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor


class FedDyn(FedAvg):
    """FedAvg whose clients' optima agree with the global one: a dynamic regulariser (Acar et al., 2021).

    A client minimises L_i(w) − ⟨h_i, w⟩ + (α/2)‖w − w_g‖² and then sets h_i ← h_i − α(w_i − w_g). The server
    keeps h ← h − (α/K) Σ (w_i − w_g), and the next round begins with Σ p_i w_i − h/α. The model to use is the
    average Σ p_i w_i itself, as in the authors' code: batch-norm statistics are the average's too.

    Where it converges, h_i is client i's gradient: an optimum of the mean over clients, whatever p_i.
    """

    weighting: Literal["samples", "uniform"] = Field(
        "uniform", description="p_i: n_i / Σ n over natural samples, or 1 / |S|, as in FedDyn's paper"
    )
    alpha: float = Field(0.01, gt=0, description="α: strength of the regulariser")

    def server_state(self, parameters: Tensor) -> Vectors:
        return {"dual": parameters.new_zeros(parameters.shape)}

    def client_state(self, server: Server) -> Vectors:
        return self.server_state(server.parameters)

    def sent(self, state: Vectors) -> Vectors:
        return {}

    def correct_gradient(self, gradient: Tensor, weights: Tensor, client: Client) -> None:
        gradient.add_(weights - client.start, alpha=self.alpha).sub_(client.state["dual"])

    def finish(self, weights: Tensor, client: Client, work: Work) -> tuple[Vectors, Vectors]:
        return {}, {"dual": client.state["dual"] - self.alpha * (weights - client.start)}

    def aggregate(self, server: Server, updates: Sequence[Update], clients: int) -> tuple[Tensor, Vectors]:
        average, _ = super().aggregate(server, updates, clients)
        moves = [update.parameters - server.parameters for update in updates]
        dual = server.state["dual"] - weighted_sum(moves, [self.alpha / clients] * len(moves))
        return average - dual / self.alpha, {"dual": dual, FINAL: average}
