"""Pretraining of the initial model on the virtual set (VFTL)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.algorithms.fedavg import FedAvg
from vhl.models.vectors import FlatModel, Layout
from vhl.objectives.plain import Plain
from vhl.rounds.problem import Problem
from vhl.training.task import Job

_NOBODY = 2**32 - 1  # stands where a client's number does: a source of chance that no client has


def pretrain(problem: Problem, model: FlatModel) -> int:
    """Train the body on the virtual classes alone, keep ``model``'s classifier; returns the samples used.

    It is local training like any other: one client that holds the virtual set.
    """
    settings, virtual = problem.experiment.objective.pretraining, problem.virtual
    assert settings is not None and virtual is not None
    stream = virtual.train
    training = {
        "epochs": settings.epochs,
        "momentum": settings.momentum,
        "keep_momentum": False,
        "freeze_batch_norm": None,  # that counts federated rounds
    }
    task = replace(
        problem.task(),
        build=lambda: problem.build(problem.virtual_classes),
        network=problem.network(problem.virtual_classes),
        natural=stream,
        virtual=None,
        classes=problem.virtual_classes,
        objective=Plain(),
        algorithm=FedAvg(),
        training=problem.experiment.training.model_copy(update=training),
        longest=len(stream),
        shared={},
    )
    start = FlatModel(task.build(), problem.device, task.numerics.dtype)
    _copy_body(problem, (model.layout, model.parameters, model.buffers), start)
    job = Job(_NOBODY, 0, np.arange(len(stream)), settings.lr, {})
    lanes = problem.workshop.lanes(problem.experiment.engine, problem.numerics, lambda note: None)
    (outcome,) = lanes.train(task, [job], Server(start.parameters, start.buffers))
    _copy_body(problem, (start.layout, outcome.update.parameters, outcome.update.buffers), model)
    return settings.epochs * len(stream)


def _copy_body(problem: Problem, source: tuple[Layout, Tensor, Tensor], target: FlatModel) -> None:
    """Copy every tensor but the classifier's."""
    layout, parameters, buffers = source
    own, named = layout.views(parameters, buffers), target.layout.views(target.parameters, target.buffers)
    for name, tensor in named.items():
        if name not in problem.head:
            tensor.copy_(own[name])
    target.refresh()
