"""Numeric arrays of a MATLAB 5 file (MathWorks, MAT-File Format, "Level 5").

SciPy's reader ends the whole process on some damaged files; this one reads no byte outside the file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_FIRST_NUMERIC_CLASS = 6  # before it are cells, structures, objects, text and sparse matrices


def read_arrays(raw: bytes) -> dict[str, np.ndarray]:
    """Every numeric array by name; whatever else the file holds is passed over."""
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(
        raw[124:128]
    )  # version and byte order end the header
    if order is None:
        raise ValueError("it does not start as a MATLAB 5 file")
    arrays = {}
    for kind, content in _elements(memoryview(raw)[128:], order):
        if kind == _COMPRESSED:
            [(kind, content)] = _elements(memoryview(zlib.decompress(content)), order)
        if kind == _MATRIX:
            arrays.update(_array(content, order))
    return arrays


def _elements(rest: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Cut a sequence of elements into their kinds and contents."""
    while rest:
        if len(rest) < 8:
            raise ValueError("it is cut off")
        kind, size = struct.unpack(f"{order}2I", rest[:8])
        start, end = 8, 8 + size
        if kind >> 16:  # a small one: its kind and size share a word, its content is the next
            kind, size = kind & 0xFFFF, kind >> 16
            start, end = 4, 4 + size
        if end > len(rest) or (start == 4 and size > 4):
            raise ValueError("it is cut off")
        yield kind, rest[start:end]
        rest = rest[end if kind == _COMPRESSED else -(-end // 8) * 8 :]  # others start at multiples of 8


def _array(content: memoryview, order: str) -> dict[str, np.ndarray]:
    flags, shape, name, values, *_ = [*_elements(content, order), *[(0, memoryview(b""))] * 4]
    kind = struct.unpack(f"{order}I", flags[1][:4])[0] & 0xFF
    if kind < _FIRST_NUMERIC_CLASS or values[0] not in _NUMBERS:
        return {}
    numbers = np.frombuffer(values[1], order + _NUMBERS[values[0]])
    sizes = np.frombuffer(shape[1], f"{order}i4").tolist()
    return {bytes(name[1]).decode("latin1"): numbers.reshape(sizes, order="F")}
