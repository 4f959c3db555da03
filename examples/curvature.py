"""How sharply each client's loss bends at the server's model, with its batch's and with fixed statistics.

    python examples/curvature.py runs/NAME --round 12

Batch normalisation by a batch's own statistics flattens the loss; by fixed ones, as after
`training.freeze_batch_norm` rounds, it does not, and a learning rate may be too high then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.config.sections import Training
from vhl.errors import VHLError
from vhl.rounds.local import local
from vhl.runs.folder import RunFolder
from vhl.runs.model import saved_tensors
from vhl.training.step import Step
from vhl.training.task import Job
from vhl.training.trainer import Trainer


def curvature(trainer: Trainer, rows: int) -> float:
    """How much the loss of a trainer's next step, on so many natural images, bends at most.

    It is the largest eigenvalue of the Hessian. What the objective holds fixed, as VHL's pull does virtual
    features, is held fixed here too.
    """
    weights = list(trainer.model.module.parameters())
    loss, _ = trainer.loss(rows)
    gradient = _joined(torch.autograd.grad(loss, weights, create_graph=True))

    def product(direction: np.ndarray) -> np.ndarray:
        along = torch.from_numpy(direction).to(gradient)
        bent: np.ndarray = _joined(torch.autograd.grad(gradient, weights, along, retain_graph=True)).numpy()
        return bent

    hessian = LinearOperator((len(gradient),) * 2, product, dtype=np.float32)
    start = np.random.default_rng(0).standard_normal(len(gradient), np.float32)
    return float(eigsh(hessian, 1, which="LA", v0=start, ncv=10, tol=0.01, return_eigenvectors=False)[0])


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def limit(training: Training) -> float:
    """2 (1 + β)/η: where the loss bends by more, descent of rate η and momentum β overshoots ever further.

    Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", ICLR 2021.
    """
    return 2 * (1 + training.momentum) / training.lr


def of_clients(run: RunFolder, which: str, data_dir: Path | None = None) -> Iterator[dict[str, float]]:
    """Of each client's first batch after a round, by the statistics that normalise it.

    Those of a batch are left out where images count by share: that layer has no second derivative.
    """
    experiment = run.experiment().with_(device="cpu", engine={"precision": "fp32"})
    clients = local(experiment, data_dir).clients
    task = clients.task
    trainers = {"fixed": Trainer(Step(task), frozen=True)}
    if task.virtual_batch is None or task.virtual_batch.share is None:
        trainers["batch"] = Trainer(Step(task))
    layout = trainers["fixed"].model.layout
    parameters, buffers = layout.pack(saved_tensors(run, which, layout))
    server = Server(parameters, buffers, experiment.algorithm.server_state(parameters))
    for client, samples in enumerate(clients.data.parts):
        state = experiment.algorithm.client_state(server)
        job = Job(client, experiment.rounds, samples, experiment.training.lr, state)
        (schedule,) = task.schedules([job])
        for trainer in trainers.values():
            trainer.begin(job, task, server, schedule)
        first, *_ = task.rows(len(samples))
        yield {name: curvature(trainer, first) for name, trainer in trainers.items()}


def main() -> None:
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_it_is)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--round", default="last", help="a round of keep_at; unset is the last")
    parser.add_argument("--data-dir", type=Path, help="where datasets lie")
    arguments = parser.parse_args()
    run = RunFolder(arguments.run)
    try:
        training = run.experiment().training
        for client, found in enumerate(of_clients(run, arguments.round, arguments.data_dir)):
            words = ", ".join(f"{value:.0f} with {name} statistics" for name, value in found.items())
            print(f"client {client}: {words}", flush=True)
    except VHLError as error:
        sys.exit(f"curvature: {error}")
    print(f"A rate of {training.lr:g} with momentum {training.momentum:g} bears {limit(training):.0f}.")


if __name__ == "__main__":
    main()
