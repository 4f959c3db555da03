"""The engine's time a round against a plain PyTorch loop that does the same work, as a ratio in one run.

The loop is what a careful engineer would write by hand for one experiment: data as tensors, batches by
indexing, ``torch.optim.SGD`` with foreach, models loaded by ``load_state_dict``. Rounds of the two alternate,
so that a noisy machine disturbs both alike.

    python benchmarks/cpu_loop.py [--rounds 7] [--threads 2]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from vhl import Experiment, Simulation, supcon

CASES = {
    "cnn, plain": {"model": "cnn", "objective": "plain"},
    "cnn, vhl": {"model": "cnn", "objective": "vhl"},
    "resnet10 width 16, plain": {"model": {"name": "resnet10", "width": 16}, "objective": "plain"},
    "resnet10 width 16, vhl": {"model": {"name": "resnet10", "width": 16}, "objective": "vhl"},
}


def experiment(file: Path, settings: dict[str, object]) -> Experiment:
    data = {"name": "npz", "path": str(file), "crop": 0, "mean": [0.5], "std": [0.25]}
    virtual = {"name": "noise", "per_class": 200, "crop": 0, "flip": False}
    partition = {"name": "iid", "clients": 4}
    return Experiment(
        data=data, virtual=virtual, partition=partition, clients_per_round=4, rounds=1000, **settings
    )


def write_images(file: Path) -> None:
    """Random 32×32 colour images: 4 clients of 512, 512 to test."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2560, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 2560)
    np.savez(
        file, images=images[:2048], labels=labels[:2048], test_images=images[2048:], test_labels=labels[2048:]
    )


class PlainLoop:
    """FedAvg, with VHL where asked, written for this one experiment."""

    def __init__(self, simulation: Simulation) -> None:
        setup, data, settings = simulation.setup, simulation.clients.data, simulation.experiment
        self.settings = settings.training
        self.vhl = settings.objective.name == "vhl"
        self.server = setup.blueprint.start().to(memory_format=torch.channels_last)
        self.worker = copy.deepcopy(self.server)
        self.images, self.labels = _tensors(data.dataset.train)
        self.test_images, self.test_labels = _tensors(data.dataset.test)
        self.parts = data.parts
        if setup.virtual is not None:
            self.virtual, self.virtual_labels = _tensors(setup.virtual.images)

    def round(self) -> None:
        start = copy.deepcopy(self.server.state_dict())
        states = []
        for part in self.parts:
            self.worker.load_state_dict(start)
            self._train(part)
            states.append(copy.deepcopy(self.worker.state_dict()))
        mean = {name: sum(state[name] for state in states) / len(states) for name in start}
        self.server.load_state_dict(mean)
        self._evaluate()

    def _train(self, part: torch.Tensor) -> None:
        s, model = self.settings, self.worker.train()
        optimizer = torch.optim.SGD(
            model.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay, foreach=True
        )
        for index in part[torch.randperm(len(part))].split(s.batch_size):
            optimizer.zero_grad(set_to_none=True)
            self._loss(model, index).backward()
            optimizer.step()

    def _loss(self, model: nn.Module, index: torch.Tensor) -> torch.Tensor:
        images, labels = self.images[index], self.labels[index]
        if not self.vhl:
            return F.cross_entropy(model(images)[1], labels)
        chosen = torch.randint(len(self.virtual), (128,))
        features, logits = model(torch.cat([images, self.virtual[chosen]]))
        natural, virtual = features["last"][: len(index)], features["last"][len(index) :]
        return (
            F.cross_entropy(logits[: len(index)], labels)
            + F.cross_entropy(logits[len(index) :], self.virtual_labels[chosen] + 10)
            + supcon(torch.cat([natural, virtual.detach()]), torch.cat([labels, self.virtual_labels[chosen]]))
        )

    @torch.no_grad()
    def _evaluate(self) -> float:
        self.server.eval()
        hits = sum(
            (self.server(images)[1].argmax(1) == labels).sum()
            for images, labels in zip(self.test_images.split(500), self.test_labels.split(500), strict=True)
        )
        return float(hits) / len(self.test_labels)


def _tensors(images) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = (torch.from_numpy(images.images).float() / 255 - 0.5) / 0.25
    return pixels.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last), torch.from_numpy(
        images.labels
    )


def timed(call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{'case':28} {'engine / plain loop':>20}   (median of {arguments.rounds} paired rounds)")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        write_images(file)
        for name, settings in CASES.items():
            simulation = Simulation(experiment(file, settings), data_dir=folder)
            loop = PlainLoop(simulation)
            simulation.run_round(), loop.round()
            ratios = [timed(simulation.run_round) / timed(loop.round) for _ in range(arguments.rounds)]
            print(f"{name:28} {statistics.median(ratios):20.3f}   ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
