"""Which clients take part in a round, and at which learning rate."""

from __future__ import annotations

import numpy as np

from vhl.chance import Purpose, generator
from vhl.errors import VHLError
from vhl.experiment import Experiment


def clients_per_round(wanted: int | float, clients: int) -> int:
    """The number asked for, or the share of all clients rounded to at least one."""
    if isinstance(wanted, float):
        if wanted > 1:
            raise VHLError(
                f"clients_per_round = {wanted} is a share above 1; write a whole number of clients instead."
            )
        return max(1, round(wanted * clients))
    if wanted > clients:
        raise VHLError(
            f"clients_per_round = {wanted}, but there are {clients} clients; choose at most {clients}."
        )
    return wanted


def sample(experiment: Experiment, round_: int, clients: int) -> list[int]:
    """The clients of a round (from 0), in order; the same for all methods.

    ``legacy`` is the authors' code: NumPy's legacy generator seeded with the round alone.
    """
    count = clients_per_round(experiment.clients_per_round, clients)
    if count == clients:
        return list(range(clients))
    if experiment.sampling == "legacy":
        chosen = np.random.RandomState(round_).choice(clients, count, replace=False)
    else:
        rng = generator(experiment.seeds.sampling, Purpose.CLIENTS, round_)
        chosen = rng.choice(clients, count, replace=False)
    return sorted(int(client) for client in chosen)


def learning_rate(experiment: Experiment, round_: int, participations: int) -> float:
    """η · decay^t with t the rounds so far, or the times this client has taken part; after drops less."""
    training = experiment.training
    decay = training.lr_decay ** (round_ if training.decay_per == "round" else participations)
    return training.lr * decay * 0.1 ** sum(round_ >= drop for drop in training.lr_drops)
