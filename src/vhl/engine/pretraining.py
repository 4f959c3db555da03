"""Pretraining of the initial model on the virtual set (VFTL)."""

from __future__ import annotations

import numpy as np

from vhl.algorithms.base import Server
from vhl.algorithms.fedavg import FedAvg
from vhl.engine.lanes import Job, Lane, Task
from vhl.engine.problem import Problem
from vhl.engine.vectors import FlatModel
from vhl.objectives.plain import Plain

_NOBODY = 2**32 - 1  # stands where a client's number does: a source of chance that no client has


def pretrain(problem: Problem, model: FlatModel) -> int:
    """Train the body on the virtual classes alone, keep ``model``'s classifier; returns the samples used.

    It is local training like any other: one client that holds the virtual set.
    """
    settings, stream = problem.experiment.objective.pretraining, problem.virtual
    assert settings is not None and stream is not None
    lane = Lane(
        Task(
            build=lambda: problem.build(problem.virtual_classes),
            device=problem.device,
            natural=stream,
            virtual=None,
            classes=problem.virtual_classes,
            features=problem.shape.features,
            objective=Plain(),
            algorithm=FedAvg(),
            training=problem.experiment.training.model_copy(
                update={"epochs": settings.epochs, "momentum": settings.momentum, "keep_momentum": False}
            ),
            seed=problem.experiment.seeds.batches,
        )
    )
    _copy_body(problem, model, lane.model)
    start = Server(lane.model.parameters.clone(), lane.model.buffers.clone())
    lane.train(Job(_NOBODY, 0, np.arange(len(stream)), settings.lr, {}), start)
    _copy_body(problem, lane.model, model)
    return settings.epochs * len(stream)


def _copy_body(problem: Problem, source: FlatModel, target: FlatModel) -> None:
    """Copy every tensor but the classifier's."""
    own = source.module.state_dict()
    for name, tensor in target.module.state_dict().items():
        if name not in problem.head:
            tensor.copy_(own[name])
