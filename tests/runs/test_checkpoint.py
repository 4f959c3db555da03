"""What a run carries from round to round comes back from its files, and only what counts is kept."""

from __future__ import annotations

from pathlib import Path

import torch

from vhl.algorithms.base import Server
from vhl.runs.checkpoint import State
from vhl.runs.folder import RunFolder


def a_state(round_: int, participations: dict[int, int]) -> State:
    """Client k's vector after n participations is (k, n)."""
    server = Server(
        torch.full((3,), float(round_)), torch.tensor([0.5, 0.25]), {"control": torch.arange(3.0) + round_}
    )
    clients = {k: {"control": torch.tensor([float(k), float(n)])} for k, n in participations.items()}
    return State(round_, server, clients, participations)


def saved(path: Path, state: State) -> State:
    folder = RunFolder(path)
    folder.save_state(state, best=None)
    manifest = folder.manifest()
    assert manifest is not None
    return folder.load_state(manifest)


def test_a_state_comes_back(tmp_path: Path) -> None:
    state = saved(tmp_path, a_state(2, {0: 1, 7: 2}))
    assert state.round == 2 and state.participations == {0: 1, 7: 2}
    assert state.server.parameters.tolist() == [2, 2, 2] and state.server.buffers.tolist() == [0.5, 0.25]
    assert {name: vector.tolist() for name, vector in state.server.state.items()} == {"control": [2, 3, 4]}
    assert {k: vectors["control"].tolist() for k, vectors in state.clients.items()} == {0: [0, 1], 7: [7, 2]}


def test_a_model_without_buffers_comes_back(tmp_path: Path) -> None:
    state = saved(tmp_path, State(1, Server(torch.ones(2), torch.zeros(0))))
    assert state.server.buffers.shape == (0,) and state.server.state == {} and state.clients == {}


def test_only_clients_that_took_part_are_written_again(tmp_path: Path) -> None:
    """With thousands of clients a checkpoint would else take longer than the round."""
    saved(tmp_path, a_state(1, {0: 1, 1: 1}))
    untouched = tmp_path / "state" / "client-1-000001.safetensors"
    before = untouched.stat().st_ino
    clients = saved(tmp_path, a_state(2, {0: 2, 1: 1})).clients
    assert untouched.stat().st_ino == before
    assert {k: vectors["control"].tolist() for k, vectors in clients.items()} == {0: [0, 2], 1: [1, 1]}


def test_what_no_longer_counts_is_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_model("round-000001", {"w": torch.ones(1)})
    folder.save_model("best-000001", {"w": torch.ones(1)})
    folder.save_state(a_state(1, {0: 1}), best={"file": "best-000001.safetensors"})
    folder.save_model("best-000003", {"w": torch.ones(1)})
    folder.save_state(a_state(3, {0: 2}), best={"file": "best-000003.safetensors"})
    (tmp_path / "state" / "server-000009.safetensors.part").touch()  # of a process that was killed
    folder.save_state(a_state(4, {0: 3}), best={"file": "best-000003.safetensors"})
    state = {"client-0-000003.safetensors", "manifest.json", "server-000004.safetensors"}
    assert {file.name for file in (tmp_path / "state").iterdir()} == state
    models = {"best-000003.safetensors", "round-000001.safetensors"}
    assert {file.name for file in (tmp_path / "models").iterdir()} == models
