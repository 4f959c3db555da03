"""The paper's numbers: a few as printed, and all of them against each other."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from vhl.paper.published import learning_rate, published

KEYS = ("dataset", "alpha", "epochs", "clients", "algorithm")
ALGORITHMS = {"fedavg", "fedprox", "scaffold", "fednova"}


@pytest.fixture
def main() -> dict[tuple[Any, ...], dict[str, Any]]:
    """The main tables by setting and algorithm."""
    return {tuple(cell[key] for key in KEYS): cell for cell in published()["main"]}


def test_every_table_is_complete(main: dict[tuple[Any, ...], Any]) -> None:
    settings = {(dataset, *rest) for dataset in ("cifar10", "fmnist", "svhn", "cifar100") for rest in FOUR}
    assert set(main) == {(*setting, algorithm) for setting in settings for algorithm in ALGORITHMS}
    for table in ("learning_rate", "cost"):  # with and without VHL
        found = Counter((*(cell[key] for key in KEYS), cell["vhl"]) for cell in published()[table])
        assert found == Counter((*key, vhl) for key in main for vhl in (False, True))
    further = Counter(cell["variant"] for cell in published()["further"])
    assert len(further) == 29 and set(further.values()) == {4}
    assert len(published()["partitions"]) == 8 and len(published()["feddf"]) == 8
    assert set(published()["centralized"]) == {"cifar10", "fmnist", "svhn", "cifar100"}


FOUR = [(0.1, 1, 10), (0.05, 1, 10), (0.1, 5, 10), (0.1, 1, 100)]
"""α, local epochs and clients of the settings that every dataset has."""


@pytest.mark.parametrize(
    ("setting", "numbers"),
    [
        (("cifar10", 0.1, 1, 10, "fedavg"), (79.0, 79.98, 87.82, 287, 128)),
        (("cifar10", 0.05, 1, 10, "scaffold"), (69.0, 38.55, 55.73, None, None)),
        (("cifar10", 0.1, 5, 10, "fedprox"), (84.0, 82.18, 86.41, None, 255)),  # printed "82,18"
        (("cifar10", 0.1, 1, 100, "fednova"), (49.0, 46.53, 61.59, None, 554)),
    ],
)
def test_numbers_of_the_main_tables(
    main: dict[tuple[Any, ...], Any], setting: tuple[Any, ...], numbers: tuple[float | None, ...]
) -> None:
    keys = ("target", "acc_plain", "acc_vhl", "rounds_plain", "rounds_vhl")
    assert tuple(main[setting][key] for key in keys) == numbers


def test_a_target_is_what_fedavg_reached_in_whole_percent(main: dict[tuple[Any, ...], Any]) -> None:
    for key, cell in main.items():
        assert cell["target"] == math.floor(main[*key[:4], "fedavg"]["acc_plain"])


def test_rounds_are_given_just_where_the_best_reached_the_target(main: dict[tuple[Any, ...], Any]) -> None:
    for key, cell in main.items():
        for kind in ("plain", "vhl"):
            rounds = cell[f"rounds_{kind}"]
            assert (rounds is None) == (cell[f"acc_{kind}"] < cell["target"])
            assert rounds is None or 0 < rounds <= (1000 if key[2] == 1 else 400)


def test_the_table_of_costs_follows_from_the_rounds(main: dict[tuple[Any, ...], Any]) -> None:
    """Images over those of the dataset: rounds × share of clients × epochs, twice with virtual images."""
    for cell in published()["cost"]:
        key = tuple(cell[name] for name in KEYS)
        rounds = main[key]["rounds_vhl" if cell["vhl"] else "rounds_plain"]
        if rounds is None:
            assert cell["samples_over_dataset"] is None
        else:
            share = {10: 0.5, 100: 0.1}[cell["clients"]]
            images = rounds * share * cell["epochs"] * (2 if cell["vhl"] else 1)
            assert cell["samples_over_dataset"] == pytest.approx(images)


@pytest.mark.parametrize(
    ("variants", "kind"),
    [
        (("Baselines", "Res18-Baselines"), "plain"),
        (("VHL", "B_v = 128", "lambda = 1.0", "h_{last}", "Res18-VHL"), "vhl"),
    ],
)
def test_what_is_printed_twice_is_the_same(
    main: dict[tuple[Any, ...], Any], variants: tuple[str, ...], kind: str
) -> None:
    further = {(cell["variant"], cell["algorithm"]): cell["acc"] for cell in published()["further"]}
    for algorithm in ALGORITHMS:
        printed = main["cifar10", 0.1, 1, 10, algorithm][f"acc_{kind}"]
        assert {further[variant, algorithm] for variant in variants} == {printed}


def test_learning_rates_differ_with_vhl_in_three_cells_alone(main: dict[tuple[Any, ...], Any]) -> None:
    rates = {key: [learning_rate(*key, vhl=vhl) for vhl in (False, True)] for key in main}
    assert {key: pair for key, pair in rates.items() if pair[0] != pair[1]} == {
        ("fmnist", 0.05, 1, 10, "fednova"): [0.0001, 0.001],
        ("svhn", 0.05, 1, 10, "scaffold"): [0.001, 0.01],
        ("svhn", 0.1, 1, 100, "fednova"): [0.0001, 0.001],
    }
    assert rates["cifar10", 0.1, 1, 10, "fedavg"] == [0.01, 0.01]
    assert rates["cifar10", 0.1, 1, 100, "scaffold"] == [0.0001, 0.0001]
