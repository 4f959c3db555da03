"""What a run carries from one round to the next, and its files: the folder ``state/`` of a run.

``manifest.json`` is written last and says which files count, so that a kill between two files leaves the
checkpoint before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vhl.algorithms.base import Server, Vectors
from vhl.files import read_json, write_json, write_tensors
from vhl.models.files import read_tensors

_MANIFEST = "manifest.json"
_PREFIX = "state."
"""Of the names of the algorithm's own vectors in the server's file."""


@dataclass(frozen=True)
class State:
    """All that a run carries from one round to the next; replaced whole, never changed in place."""

    round: int
    """Rounds done."""
    server: Server
    clients: dict[int, Vectors] = field(default_factory=dict)
    """Vectors of the clients that have any."""
    participations: dict[int, int] = field(default_factory=dict)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What the last checkpoint consists of, or ``None`` before the first."""
    file = folder / _MANIFEST
    return read_json(file) if file.is_file() else None


def write_state(folder: Path, state: State, best: dict[str, Any] | None) -> dict[str, Any]:
    """Write the files of a state, then the manifest that makes them count; the manifest.

    Files that no longer count are left: see :func:`forget_all_but`.
    """
    old = read_manifest(folder) or {"clients": {}, "participations": {}}
    own = {f"{_PREFIX}{name}": vector for name, vector in state.server.state.items()}
    server = f"server-{state.round:06d}.safetensors"
    everything = {"parameters": state.server.parameters, "buffers": state.server.buffers, **own}
    write_tensors(folder / server, everything)
    clients = {}
    for client, vectors in state.clients.items():
        # A client's vectors change only when it takes part: untouched ones keep their file.
        count = state.participations.get(client, 0)
        unchanged = old["participations"].get(str(client)) == count and str(client) in old["clients"]
        file = old["clients"][str(client)] if unchanged else f"client-{client}-{count:06d}.safetensors"
        if not unchanged:
            write_tensors(folder / file, vectors)
        clients[str(client)] = file
    manifest = {
        "round": state.round,
        "server": server,
        "clients": clients,
        "participations": {str(client): count for client, count in state.participations.items()},
        "best": best,
    }
    write_json(folder / _MANIFEST, manifest)
    return manifest


def read_server(folder: Path, manifest: dict[str, Any]) -> Server:
    vectors, _ = read_tensors(folder / manifest["server"])
    parameters, buffers = vectors.pop("parameters"), vectors.pop("buffers")
    return Server(parameters, buffers, {name.removeprefix(_PREFIX): v for name, v in vectors.items()})


def read_state(folder: Path, manifest: dict[str, Any]) -> State:
    clients = {int(client): read_tensors(folder / file)[0] for client, file in manifest["clients"].items()}
    counts = {int(client): count for client, count in manifest["participations"].items()}
    return State(manifest["round"], read_server(folder, manifest), clients, counts)


def forget_all_but(folder: Path, manifest: dict[str, Any]) -> None:
    """Remove what older checkpoints, or one that a kill cut short, left behind."""
    counting = {manifest["server"], _MANIFEST, *manifest["clients"].values()}
    for file in folder.iterdir():
        if file.name not in counting:
            file.unlink(missing_ok=True)
