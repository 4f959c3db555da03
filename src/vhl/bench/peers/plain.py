"""FedAvg as a careful engineer writes it by hand: data on the device, foreach SGD, channels last."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vhl.bench.work import Data, Round, Work


def run(work: Work, rounds: int) -> Iterator[Round]:
    loop = _Loop(work)
    for number in range(rounds):
        yield work.measure(number, loop.round, loop.evaluate)


class _Loop:
    def __init__(self, work: Work) -> None:
        self.data = Data(work)
        self.server = work.network()
        self.worker = copy.deepcopy(self.server)

    def round(self, clients: list[int]) -> None:
        """w ← Σ n_i w_i / Σ n over the clients' parameters and buffers (McMahan et al., 2017)."""
        server, worker = _tensors(self.server), _tensors(self.worker)
        mean = [torch.zeros_like(tensor) for tensor in server]
        sizes = {client: len(self.data.parts[client]) for client in clients}
        for client, size in sizes.items():
            torch._foreach_copy_(worker, server)
            self.data.train(self.worker, client)
            torch._foreach_add_(mean, worker, alpha=size / sum(sizes.values()))
        torch._foreach_copy_(server, mean)

    def evaluate(self) -> float:
        return self.data.accuracy(self.server)


def _tensors(network: nn.Module) -> list[Tensor]:
    """All that is averaged; whole numbers, as a count of batches, are not."""
    return [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]
