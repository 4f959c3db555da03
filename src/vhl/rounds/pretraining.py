"""Pretraining of the initial model on the virtual set (VFTL)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.algorithms.fedavg import FedAvg
from vhl.models.vectors import FlatModel, Layout
from vhl.objectives.plain import Plain
from vhl.rounds.local import task_of
from vhl.rounds.setup import Setup
from vhl.training.client_data import ClientData
from vhl.training.lanes import Lanes
from vhl.training.task import Job

_NOBODY = 2**32 - 1  # stands where a client's number does: a source of chance that no client has


def pretrain(setup: Setup, lanes: Lanes, model: FlatModel) -> int:
    """Train the body on the virtual classes alone, keep ``model``'s classifier; returns the samples used.

    It is local training like any other: one client that holds the virtual set.
    """
    settings, virtual = setup.experiment.objective.pretraining, setup.virtual
    assert settings is not None and virtual is not None
    everything = torch.arange(len(virtual.train), device=setup.precision.device)
    training = {
        "epochs": settings.epochs,
        "momentum": settings.momentum,
        "keep_momentum": False,
        "freeze_batch_norm": None,  # that counts federated rounds
    }
    blueprint = replace(setup.blueprint, outputs=setup.virtual_classes)
    task = replace(
        task_of(setup, ClientData(virtual.train, [everything])),
        build=blueprint.build,
        network=blueprint.identity(),
        virtual=None,
        classes=setup.virtual_classes,
        objective=Plain(),
        algorithm=FedAvg(),
        training=setup.experiment.training.model_copy(update=training),
        shared={},
    )
    start = FlatModel(task.build(), task.device, task.precision.dtype)
    head = setup.blueprint.head
    _copy_body(head, (model.layout, model.parameters, model.buffers), start)
    job = Job(_NOBODY, 0, everything, settings.lr, {})
    (outcome,) = lanes.train(task, [job], Server(start.parameters, start.buffers))
    _copy_body(head, (start.layout, outcome.update.parameters, outcome.update.buffers), model)
    return settings.epochs * len(everything)


def _copy_body(head: tuple[str, ...], source: tuple[Layout, Tensor, Tensor], target: FlatModel) -> None:
    """Copy every tensor but the classifier's."""
    layout, parameters, buffers = source
    own, named = layout.views(parameters, buffers), target.layout.views(target.parameters, target.buffers)
    for name, tensor in named.items():
        if name not in head:
            tensor.copy_(own[name])
    target.refresh()
