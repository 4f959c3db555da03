from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from vhl.rounds.simulation import Simulation
from vhl.runs.record import Record


@pytest.fixture(scope="session")
def comparable() -> Callable[[Iterable[Record]], list[Record]]:
    """Records without their wall times; a simulation is run to its end for them."""
    return lambda records: [record.model_copy(update={"seconds": 0.0}) for record in records]


@pytest.fixture(scope="session")
def vectors_of() -> Callable[[Simulation], dict[str, Any]]:
    """Every vector of a simulation's state by name."""

    def name(simulation: Simulation) -> dict[str, Any]:
        server = simulation.state.server
        found = {"parameters": server.parameters, "buffers": server.buffers, **server.state}
        clients = simulation.state.clients.items()
        return found | {f"{client}.{name}": v for client, own in clients for name, v in own.items()}

    return name


@pytest.fixture(scope="session")
def assert_same_state(vectors_of: Callable[..., Any]) -> Callable[[Simulation, Simulation], None]:
    """To the bit, and who took part how often."""

    def compare(one: Simulation, other: Simulation) -> None:
        found, expected = vectors_of(one), vectors_of(other)
        assert one.state.round == other.state.round and list(found) == list(expected)
        assert one.state.participations == other.state.participations
        assert all(found[name].equal(expected[name]) for name in expected)

    return compare


@pytest.fixture(scope="session")
def assert_same_run(
    assert_same_state: Callable[..., None], comparable: Callable[..., list[Record]]
) -> Callable[[Simulation, Simulation], None]:
    """Both run to their end."""

    def compare(one: Simulation, other: Simulation) -> None:
        assert comparable(one) == comparable(other)
        assert_same_state(one, other)

    return compare
