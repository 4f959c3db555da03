"""Where clients' vectors lie between their rounds: on the device as far as allowed, else on the host."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vhl.algorithms.base import Vectors


def remember(
    clients: Mapping[int, Vectors], new: Mapping[int, Vectors], device_bytes: float
) -> dict[int, Vectors]:
    """The clients' vectors with ``new`` ones in place, the latest last.

    Those that were not used for longest move to the host's memory until the others fit ``device_bytes``.
    """
    kept = {client: vectors for client, vectors in clients.items() if client not in new}
    kept |= {client: new[client] for client in new}
    size = sum(map(_device_bytes, kept.values()))
    for client, vectors in kept.items():
        if size <= device_bytes:
            break
        size -= _device_bytes(vectors)
        kept[client] = {name: _to_host(vector) for name, vector in vectors.items()}
    return kept


def _device_bytes(vectors: Vectors) -> int:
    return sum(vector.nbytes for vector in vectors.values() if vector.is_cuda)


def _to_host(vector: Tensor) -> Tensor:
    """Into pinned memory, without waiting: whoever reads it on the host waits for the stream first."""
    if not vector.is_cuda:
        return vector
    host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
    return host.copy_(vector, non_blocking=True)
