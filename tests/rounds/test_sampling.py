from __future__ import annotations

import numpy as np
import pytest

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.rounds.sampling import clients_per_round, learning_rate, sample


def chosen(rounds=range(8), clients=10, **settings):
    experiment = Experiment(**{"clients_per_round": 4, **settings})
    return [sample(experiment, round_, clients) for round_ in rounds]


def test_seed_and_round_alone_decide():
    reference = chosen()
    same = chosen(
        algorithm="scaffold",
        objective="plain",
        seeds={"data": 5, "model": 6, "batches": 7},
        training={"lr": 0.5, "epochs": 3},
    )
    assert same == reference
    assert chosen(rounds=reversed(range(8))) == reference[::-1]
    assert chosen(seeds={"sampling": 1}) != reference
    assert len({tuple(clients) for clients in reference}) > 4


def test_clients_are_distinct_and_in_order():
    for clients in chosen(range(50)):
        assert clients == sorted(set(clients)) and len(clients) == 4 and set(clients) <= set(range(10))


def test_every_client_is_as_likely():
    counts = np.bincount(np.concatenate(chosen(range(2000))), minlength=10)
    np.testing.assert_allclose(counts / 2000, 0.4, atol=0.055)  # 5 standard deviations


@pytest.mark.parametrize(("clients", "count"), [(10, 5), (100, 10)])
def test_legacy_is_numpy_seeded_with_the_round(clients, count):
    state = np.random.get_state()
    found = chosen(range(20), clients, clients_per_round=count, sampling="legacy", seeds={"sampling": 3})
    assert np.array_equal(state[1], np.random.get_state()[1])  # the caller's chance is left alone
    for round_, clients_of_round in enumerate(found):
        np.random.seed(round_)
        assert clients_of_round == sorted(np.random.choice(range(clients), count, replace=False))
    np.random.set_state(state)


@pytest.mark.parametrize(
    ("wanted", "clients", "count"),
    [(5, 10, 5), (10, 10, 10), (0.5, 10, 5), (1.0, 7, 7), (0.34, 10, 3), (0.01, 10, 1), (1, 10, 1)],
)
def test_number_or_share(wanted, clients, count):
    assert clients_per_round(wanted, clients) == count


@pytest.mark.parametrize(("wanted", "word"), [(11, "at most 10"), (5.0, "share above 1")])
def test_impossible_numbers_are_refused(wanted, word):
    with pytest.raises(VHLError, match=word):
        clients_per_round(wanted, 10)


def test_full_participation_takes_everyone():
    assert chosen([0, 5], clients_per_round=1.0) == [list(range(10))] * 2


@pytest.mark.parametrize(("decay_per", "expected"), [("round", 0.8 * 0.5**3), ("participation", 0.8 * 0.5)])
def test_learning_rate_decays_by_round_or_by_participation(decay_per, expected):
    experiment = Experiment(training={"lr": 0.8, "lr_decay": 0.5, "decay_per": decay_per})
    assert learning_rate(experiment, 3, 1) == pytest.approx(expected)
    assert learning_rate(experiment, 0, 0) == 0.8


@pytest.mark.parametrize(("round_", "expected"), [(2, 0.8), (3, 0.08), (4, 0.08), (5, 0.008)])
def test_learning_rate_falls_to_a_tenth_after_each_drop(round_, expected):
    """``lr_drops=[3]``: the first three rounds, 0 to 2, have the whole rate."""
    experiment = Experiment(training={"lr": 0.8, "lr_decay": 1.0, "lr_drops": [3, 5]})
    assert learning_rate(experiment, round_, 0) == pytest.approx(expected)


def test_drops_come_on_top_of_decay():
    experiment = Experiment(training={"lr": 0.8, "lr_decay": 0.5, "lr_drops": [1]})
    assert learning_rate(experiment, 2, 0) == pytest.approx(0.8 * 0.5**2 / 10)
