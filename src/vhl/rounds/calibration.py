"""The classifier retrained after the last round (CCVR; Luo et al., NeurIPS 2021)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vhl.algorithms.base import FINAL, Calibration, Server
from vhl.models.vectors import FlatModel
from vhl.rounds.problem import Problem

_MOMENTUM = 0.9


def calibrate(problem: Problem, model: FlatModel, server: Server, settings: Calibration) -> Server:
    """The server with a new classifier for whoever uses the model; clients would go on from the old one."""
    model.load(server.parameters, server.buffers)
    gaussians = _gaussians(problem.moments(model))
    seed = np.random.SeedSequence(problem.experiment.seeds.batches, spawn_key=(problem.experiment.rounds,))
    rng = np.random.default_rng(seed)
    features, labels = _draw(gaussians, settings.per_class, rng)
    final, buffers = server.parameters.clone(), server.buffers.clone()
    weight, bias = problem.linear_head(model.layout.views(final, buffers))
    for ours, trained in zip(
        (weight, bias), _train((weight, bias), features, labels, settings, rng), strict=True
    ):
        ours.copy_(trained)
    return replace(server, state={**server.state, FINAL: final})


def traffic(problem: Problem, model: FlatModel) -> int:
    """Bytes sent for it: the last model to every client, and back counts, means and covariances.

    Of a covariance, being symmetric, half.
    """
    length, layout = problem.shape.features["last"], model.layout
    down = layout.parameter_count + layout.buffer_count
    up = problem.classes * (1 + length + length * (length + 1) // 2)
    return model.parameters.element_size() * problem.clients * (down + up)


def _gaussians(moments: dict[str, Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
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


def _train(
    head: tuple[Tensor, Tensor],
    features: Tensor,
    labels: Tensor,
    settings: Calibration,
    rng: np.random.Generator,
) -> list[Tensor]:
    """Gradient descent on the classifier alone, on the CPU: it is one small layer."""
    own = [tensor.to("cpu", torch.float64, copy=True).requires_grad_() for tensor in head]
    optimizer = torch.optim.SGD(own, lr=settings.lr, momentum=_MOMENTUM)
    for _ in range(settings.epochs):
        for batch in torch.from_numpy(rng.permutation(len(labels))).split(settings.batch):
            logits = features[batch] @ own[0].T + own[1]
            optimizer.zero_grad()
            cross_entropy(logits, labels[batch]).backward()
            optimizer.step()
    return [tensor.detach() for tensor in own]
