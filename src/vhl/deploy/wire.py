"""Vectors as Flower's arrays, and back; what comes in is looked at before it is read, and never unpickled."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from vhl.algorithms.base import Server, Vectors

Form = tuple[torch.dtype, tuple[int, ...]]
"""Of a tensor: its type and shape."""
_NUMPY = "numpy.ndarray"  # the one way of writing arrays that is read here
_HEADER = 10_000  # bytes before the numbers, at most; as NumPy allows by itself
_LARGEST_TEXT = 10_000_000


class RefusedError(Exception):
    """What came in does not count; the sentence says why, and goes into a log."""


class OtherImagesError(RefusedError):
    """What came in was made of other images than its site has said it has."""


def form(tensor: Tensor) -> Form:
    return tensor.dtype, tuple(tensor.shape)


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()})


def from_arrays(content: RecordDict, key: str, expected: Mapping[str, Form]) -> dict[str, Tensor]:
    """The tensors of one record: just the names, types and shapes expected, and all numbers finite."""
    record = content.get(key)
    if not isinstance(record, ArrayRecord):
        raise RefusedError(f"no arrays {key!r}")
    if set(record) != set(expected):
        raise RefusedError(f"arrays {sorted(record)} instead of {sorted(expected)}")
    return {name: _tensor(name, record[name], *expected[name]) for name in expected}


def _tensor(name: str, array: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Flower's own reading believes the bytes, whatever the array says of itself, and allocates first."""
    wanted = np.dtype(str(dtype).removeprefix("torch."))
    if array.stype != _NUMPY or array.dtype != str(wanted) or tuple(array.shape) != shape:
        raise RefusedError(f"{name} is {array.dtype} {tuple(array.shape)}, not {wanted} {shape}")
    stream = io.BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("another version")
        found = np.lib.format.read_array_header_1_0(stream, max_header_size=_HEADER)
    except Exception as error:  # NumPy's parser has many ways to fail, RecursionError among them
        raise RefusedError(f"{name} has no readable header") from error
    numbers = array.data[stream.tell() :]
    size = int(np.prod(shape, dtype=np.int64)) * wanted.itemsize
    if found[::2] != (shape, wanted) or len(numbers) != size:
        raise RefusedError(
            f"{name} is not what its description says: {found[2]} {found[0]}, {len(numbers)} bytes"
        )
    values = np.frombuffer(numbers, wanted).reshape(shape, order="F" if found[1] else "C")
    tensor = torch.from_numpy(values.copy())
    if not tensor.isfinite().all():
        raise RefusedError(f"{name} is not finite")
    return tensor


def to_text(values: Mapping[str, Any]) -> ConfigRecord:
    return ConfigRecord({"json": json.dumps(values)})


def from_text(content: RecordDict, key: str) -> dict[str, Any]:
    """A table of plain values; their meaning is for whoever asked for it to check."""
    record = content.get(key)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str) or len(text) > _LARGEST_TEXT:
        raise RefusedError(f"no text {key!r}")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{key} is not JSON") from error
    if not isinstance(values, dict):
        raise RefusedError(f"{key} is no table")
    return values


def flatten(server: Server) -> Vectors:
    """A server's vectors under one name each."""
    return {
        "parameters": server.parameters,
        "buffers": server.buffers,
        **prefixed("state.", server.state),
    }


def unflatten(vectors: Mapping[str, Tensor]) -> Server:
    return Server(vectors["parameters"], vectors["buffers"], without("state.", vectors))


def prefixed(prefix: str, vectors: Mapping[str, Tensor]) -> Vectors:
    return {prefix + name: vector for name, vector in vectors.items()}


def without(prefix: str, vectors: Mapping[str, Tensor]) -> Vectors:
    """Those whose names begin so, without it."""
    return {n.removeprefix(prefix): vector for n, vector in vectors.items() if n.startswith(prefix)}
