"""MOON (Li, He and Song, CVPR 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field
from torch.nn.functional import cosine_similarity, softplus

from vhl.algorithms.base import Client, Server, Vectors, Work
from vhl.algorithms.fedavg import FedAvg
from vhl.objectives.base import Batch, full_precision, weighted_mean

if TYPE_CHECKING:
    from torch import Tensor


class MOON(FedAvg):
    """FedAvg with a model-contrastive term: features stay near the server's (Li et al., 2021).

    For each natural sample −μ log [exp(cos(z, z_g)/τ) / (exp(cos(z, z_g)/τ) + exp(cos(z, z_p)/τ))], where z_g
    and z_p are the features that the round's server model and the client's own last model make of it. The
    paper puts a projection head before them; here they are those of the network that all methods share.
    """

    references = ("server", "previous")

    mu: float = Field(5.0, ge=0, description="μ: weight of the contrastive term; 0 is FedAvg")
    temperature: float = Field(0.5, gt=0, description="τ: the smaller, the more the nearest model counts")

    def client_state(self, server: Server) -> Vectors:
        return {"parameters": server.parameters, "buffers": server.buffers}

    def reference(self, name: str, client: Client) -> tuple[Tensor, Tensor]:
        if name == "server":
            return client.start, client.start_buffers
        return client.state["parameters"], client.state["buffers"]

    def loss(self, batch: Batch, references: Mapping[str, Tensor]) -> dict[str, Tensor]:
        features = full_precision(batch.features["last"][: len(batch.labels)]).flatten(1)
        near, far = (
            cosine_similarity(features, full_precision(references[name]).flatten(1))
            for name in self.references
        )
        return {"contrast": self.mu * weighted_mean(softplus((far - near) / self.temperature), batch.weights)}

    def finish(self, weights: Tensor, client: Client, work: Work) -> tuple[Vectors, Vectors]:
        return {}, {"parameters": weights, "buffers": client.buffers}
