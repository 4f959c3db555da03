from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vhl.rounds import client_state
from vhl.rounds.client_state import remember

BYTES = 4 * 10  # of one client's vector below


class _OnDevice(torch.Tensor):
    """Says that it lies on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda = True


@pytest.fixture(autouse=True)
def pinned(monkeypatch):
    """The sizes of vectors for which pinned memory was asked; there is none without a GPU."""
    sizes = []

    def empty(shape, *, dtype, pin_memory):
        assert pin_memory
        sizes.append(*shape)
        return torch.empty(shape, dtype=dtype)

    monkeypatch.setattr(client_state, "torch", SimpleNamespace(empty=empty))
    return sizes


def vector(number, length=10, dtype=torch.float32):
    """A number many times over: on the device, or if it is negative on the host."""
    values = torch.full((length,), abs(number), dtype=dtype)
    return values.as_subclass(_OnDevice) if number > 0 else values


def states(*numbers):
    """Clients' vectors: all elements are the client's own number; a negative one means on the host."""
    return {abs(number): {"control": vector(number)} for number in numbers}


def places(clients):
    """The numbers that :func:`states` would make these of."""
    signed = [(vectors["control"], 1 if vectors["control"].is_cuda else -1) for vectors in clients.values()]
    return [int(control[0]) * sign for control, sign in signed]


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (4, [1, 2, 3, 4]),
        (3, [-1, 2, 3, 4]),
        (2.5, [-1, -2, 3, 4]),
        (1, [-1, -2, -3, 4]),
        (0.9, [-1, -2, -3, -4]),  # even of those that have just come
        (0, [-1, -2, -3, -4]),
    ],
)
def test_those_unused_for_longest_go_until_the_others_fit(pinned, room, expected):
    found = remember(states(1, 2), states(3, 4), room * BYTES)
    assert list(found) == [1, 2, 3, 4] and places(found) == expected
    assert pinned == [10] * sum(number < 0 for number in expected)


def test_a_client_that_took_part_again_is_the_latest():
    found = remember(states(1, 2, 3), states(1, 4), 3 * BYTES)
    assert list(found) == [2, 3, 1, 4] and places(found) == [-2, 3, 1, 4]


def test_new_vectors_replace_the_old():
    newer = {1: {"control": vector(7), "other": vector(8, 3)}}
    found = remember(states(1, 2), newer, 1e9)
    assert list(found) == [2, 1] and set(found[1]) == {"control", "other"}
    assert all(found[1][name] is newer[1][name] for name in newer[1])


def test_what_lies_on_the_host_takes_no_room_and_stays_there(pinned):
    before = states(-1, -2, 3)
    found = remember(before, states(4), 2 * BYTES)
    assert places(found) == [-1, -2, 3, 4] and pinned == []
    found = remember(found, states(5), 2 * BYTES)
    assert places(found) == [-1, -2, -3, 4, 5] and pinned == [10]
    assert found[1]["control"] is before[1]["control"]  # not copied again


def test_all_vectors_of_a_client_go_together(pinned):
    own = {"control": vector(1, 4), "engine.momentum": vector(3, 6, torch.float64), "rest": vector(-5, 2)}
    found = remember({1: own}, states(2), 60)
    assert places(found) == [-1, 2] and pinned == [4, 6]
    assert {name: moved.tolist() for name, moved in found[1].items()} == {
        "control": [1] * 4,
        "engine.momentum": [3] * 6,
        "rest": [5] * 2,
    }
    assert found[1]["engine.momentum"].dtype == torch.float64
    assert not any(moved.is_cuda for moved in found[1].values())


@pytest.mark.parametrize(("room", "stays"), [(4 * 4 + 8 * 6, True), (4 * 4 + 8 * 6 - 1, False)])
def test_room_is_counted_in_bytes(room, stays):
    own = {"control": vector(1, 4), "engine.momentum": vector(3, 6, torch.float64), "rest": vector(-5, 2)}
    assert remember({}, {1: own}, room)[1]["control"].is_cuda == stays


def test_nothing_given_is_changed():
    """A state is replaced whole: a checkpoint may still be written from the one before."""
    before, new = states(1, 2), states(2, 3)
    vectors = [client["control"] for client in (*before.values(), *new.values())]
    found = remember(before, new, 0)
    assert places(found) == [-1, -2, -3]
    assert places(before) == [1, 2] and places(new) == [2, 3] and list(before) == [1, 2]
    assert all(a["control"] is v for a, v in zip((*before.values(), *new.values()), vectors, strict=True))


def test_a_cpu_has_one_memory():
    """Without a GPU nothing is moved, whatever the bound."""
    before, new = states(-1), states(-2)
    found = remember(before, new, 0)
    assert all(found[client]["control"] is {**before, **new}[client]["control"] for client in (1, 2))


def test_the_setting_is_in_gigabytes(point_simulation, monkeypatch):
    bounds = []

    def noted(clients, new, device_bytes):
        bounds.append((device_bytes, sorted(new)))
        return remember(clients, new, device_bytes)

    monkeypatch.setattr("vhl.rounds.simulation.remember", noted)
    points = [[(8, 0, 4)], [(0, 16, 4)]]
    for engine in ({}, {"state_memory": 0.25}, {"state_memory": 0}):
        point_simulation(points, algorithm="scaffold", engine=engine).run_round()
    assert bounds == [(8e9, [0, 1]), (0.25e9, [0, 1]), (0, [0, 1])]
