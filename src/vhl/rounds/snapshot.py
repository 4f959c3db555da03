"""What pictures and theory need of a round, so that no checkpoint is needed for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vhl.algorithms.base import Server, Update
from vhl.models.vectors import FlatModel
from vhl.rounds.evaluation import Evaluation
from vhl.rounds.looking import count, look
from vhl.rounds.setup import Setup
from vhl.training.streams import Stream

SAMPLES = 2_000
CLIENTS = 3
ACCURACIES = ("confusion", "clients", "client_accuracy")
"""What a snapshot always has."""


def take_snapshot(
    setup: Setup,
    model: FlatModel,
    server: Server,
    updates: Sequence[Update],
    evaluation: Evaluation,
    *,
    features: bool,
) -> dict[str, Tensor]:
    """Confusion and client accuracies; with ``features`` also the head, and what models make of samples.

    ``clients`` lists the round's clients and ``client_accuracy`` the accuracy of each one's model on the test
    set. Features, logits and labels for the server and a few clients are called ``server.test.features``,
    ``client7.virtual.logits`` and the like.
    """
    assert setup.test is not None
    found = {"confusion": evaluation.confusion, "clients": torch.tensor([u.client for u in updates])}
    if features:
        model.load(server.parameters, server.buffers)
        found |= _look_at_all(setup, model, "server")
        tensors = model.layout.unpack(server.parameters, server.buffers)
        found |= {f"head.{name}": tensors[name] for name in setup.blueprint.head}
    accuracies = []
    for number, update in enumerate(updates):
        model.load(update.parameters, update.buffers)
        with setup.precision.active():
            counts = count(model, setup.test, setup.classes, setup.precision)
        accuracies.append(Evaluation(*(table.cpu() for table in counts)).accuracy)
        if features and number < CLIENTS:
            found |= _look_at_all(setup, model, f"client{update.client}")
    found["client_accuracy"] = torch.tensor(accuracies)
    model.load(server.parameters, server.buffers)
    return found


def _look_at_all(setup: Setup, model: FlatModel, who: str) -> dict[str, Tensor]:
    assert setup.test is not None
    streams = {"test": setup.test}
    if setup.virtual is not None:
        streams["virtual"] = setup.virtual.plain
    return {
        f"{who}.{kind}.{name}": tensor
        for kind, stream in streams.items()
        for name, tensor in look(model, stream, _spread(stream), setup.precision).items()
    }


def _spread(stream: Stream) -> Tensor:
    """At most :data:`SAMPLES` indices, evenly spread over the set."""
    count = min(SAMPLES, len(stream))
    return (torch.arange(count, device=stream.labels.device) * len(stream)) // count
