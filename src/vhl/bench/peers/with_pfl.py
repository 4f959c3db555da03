"""FedAvg in Apple's pfl-research (Granqvist et al., NeurIPS 2024), as in its own benchmark of images.

Its simulated backend trains the clients one after the other on data that already lie on the device. pfl is
imported where it is used, for it need not be installed.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vhl.bench.work import TEST_BATCH, Data, Round, Work

_DEVICE = "PFL_PYTORCH_DEVICE"


def run(work: Work, rounds: int) -> Iterator[Round]:
    with _device(work.device):
        simulation = _Simulation(work)
        for number in range(rounds):
            yield work.measure(number, simulation.round, simulation.evaluate)


@contextmanager
def _device(device: torch.device) -> Iterator[None]:
    """pfl learns its device from the environment alone."""
    before = os.environ.get(_DEVICE)
    os.environ[_DEVICE] = str(device)
    try:
        yield
    finally:
        os.environ.pop(_DEVICE)
        if before is not None:
            os.environ[_DEVICE] = before


class _Simulation:
    """pfl's algorithm, run one central iteration at a time; it goes on where it stopped."""

    def __init__(self, work: Work) -> None:
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams

        self.chosen: deque[int] = deque()
        self.model = _model(work)
        data = Data(work)
        self.backend = _backend(data, self.chosen)
        self.test = Dataset((data.test_images, data.test_labels))
        self.algorithm = FederatedAveraging()
        self.rounds = 0
        self.training = NNTrainHyperParams(
            local_batch_size=work.batch_size, local_num_epochs=work.epochs, local_learning_rate=work.lr
        )
        self.evaluating = NNEvalHyperParams(local_batch_size=TEST_BATCH)

    def round(self, clients: list[int]) -> None:
        from pfl.algorithm.base import NNAlgorithmParams

        self.rounds += 1
        self.chosen.extend(clients)
        settings = NNAlgorithmParams(
            central_num_iterations=self.rounds,
            evaluation_frequency=math.nan,  # never: others evaluate no client, and pfl would in iteration 0
            train_cohort_size=len(clients),
            val_cohort_size=0,
        )
        self.algorithm.run(settings, self.backend, self.model, self.training, send_metrics_to_platform=False)

    def evaluate(self) -> float:
        metrics = self.model.evaluate(self.test, eval_params=self.evaluating)
        return float(metrics["accuracy"].overall_value)


def _model(work: Work) -> Any:
    from pfl.model.pytorch import PyTorchModel

    network = _Network(work.network())
    buffers = {name: buffer for name, buffer in network.named_buffers() if buffer.is_floating_point()}
    model = PyTorchModel(
        network,
        partial(torch.optim.SGD, momentum=work.momentum, weight_decay=work.weight_decay, foreach=True),
        torch.optim.SGD([*network.parameters(), *buffers.values()], lr=1.0),
    )
    # What pfl sends, averages and resets; of itself it would let buffers pass from client to client.
    model.variable_map.update(buffers)
    return model


def _backend(data: Data, chosen: deque[int]) -> Any:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.data.federated_dataset import FederatedDataset

    users = FederatedDataset(partial(_User, data), chosen.popleft)
    return SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()])


class _Network(nn.Module):
    """The network with the loss and metrics that pfl asks of a model."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        if not self.network.training:
            self.train()
        return cross_entropy(self.network(images)[1], labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        self.eval()
        hits = (self.network(images)[1].argmax(1) == labels).sum()
        return {"accuracy": Weighted(int(hits), len(labels))}


class _User:
    """A client's dataset, as far as pfl's training asks for it."""

    train_kwargs: dict[str, Any] = {}

    def __init__(self, data: Data, client: int) -> None:
        self.data, self.client = data, client
        self.user_id = str(client)

    def __len__(self) -> int:
        return len(self.data.parts[self.client])

    def iter(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch in batches; their size is the work's, which is what pfl asks for."""
        return self.data.epoch(self.client)
