"""CCVR (Luo et al., NeurIPS 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from vhl.algorithms.base import FINAL, Server, Stage, Update, Vectors
from vhl.algorithms.fedavg import FedAvg

_MOMENTUM = 0.9


class CCVR(FedAvg):
    """FedAvg, and after the last round a classifier retrained on Gaussian features (Luo et al., 2021).

    Every client sends, for each class, how many samples it has and the mean and covariance of the features
    that the server's model makes of them. The server pools them, draws features of each class from
    N(μ_c, Σ_c) and trains the classifier on those alone. Rounds before the last are FedAvg's.
    """

    ends: ClassVar[bool] = True

    per_class: int = Field(
        2_000, ge=1, description="features drawn for each class, as in the paper on CIFAR-10"
    )
    epochs: int = Field(10, ge=1, description="passes over them")
    lr: float = Field(0.01, gt=0, description="the classifier's learning rate, with momentum 0.9")
    batch_size: int = Field(64, ge=1, description="features of a step")

    def prepare(self, stage: Stage) -> None:
        stage.check_linear_head(f"algorithm = {self.name}")

    def after_round(self, server: Server, updates: Sequence[Update], stage: Stage) -> Server:
        """The new classifier is for whoever uses the model: clients would go on from the old one."""
        if not stage.last:
            return server
        rng = stage.generator()
        features, labels = _draw(_gaussians(stage.moments(server)), self.per_class, rng)
        final = server.parameters.clone()
        head = stage.linear_head(final, server.buffers)
        for ours, trained in zip(head, self._trained(head, features, labels, rng), strict=True):
            ours.copy_(trained)
        return replace(server, state={**server.state, FINAL: final})

    def _trained(
        self, head: tuple[Tensor, Tensor], features: Tensor, labels: Tensor, rng: np.random.Generator
    ) -> list[Tensor]:
        """Gradient descent on the classifier alone, on the CPU: it is one small layer."""
        own = [tensor.to("cpu", torch.float64, copy=True).requires_grad_() for tensor in head]
        optimizer = torch.optim.SGD(own, lr=self.lr, momentum=_MOMENTUM)
        for _ in range(self.epochs):
            for batch in torch.from_numpy(rng.permutation(len(labels))).split(self.batch_size):
                logits = features[batch] @ own[0].T + own[1]
                optimizer.zero_grad()
                cross_entropy(logits, labels[batch]).backward()
                optimizer.step()
        return [tensor.detach() for tensor in own]


def _gaussians(moments: Vectors) -> dict[int, tuple[Tensor, Tensor]]:
    """Mean and a root of the covariance of each class's features, over all clients' samples.

    μ = Σ z / n and Σ = (Σ zzᵀ − n μμᵀ)/(n − 1): what the paper pools from the clients' own means and
    covariances is the same.
    """
    found = {}
    for label, count in enumerate(moments["counts"].tolist()):
        if count:
            mean = moments["sums"][label] / count
            covariance = (moments["products"][label] - count * torch.outer(mean, mean)) / max(1, count - 1)
            values, vectors = torch.linalg.eigh(covariance)
            found[label] = mean, vectors * values.clamp(min=0).sqrt()
    return found


def _draw(
    gaussians: dict[int, tuple[Tensor, Tensor]], per_class: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    features, labels = [], []
    for label, (mean, root) in gaussians.items():
        noise = torch.from_numpy(rng.standard_normal((per_class, len(mean))))
        features.append(mean + noise @ root.T)
        labels += [label] * per_class
    return torch.cat(features), torch.tensor(labels)
