from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from scipy.io import savemat

from vhl.data.sources._matlab import read_arrays


def saved(content: dict[str, object], compress: bool = False) -> bytes:
    stream = io.BytesIO()
    savemat(stream, content, do_compression=compress)
    return stream.getvalue()


@pytest.mark.parametrize("compress", [False, True])
def test_numeric_arrays_come_back_and_other_values_are_passed_over(rng, compress):
    arrays = {
        "X": rng.integers(0, 256, (3, 4, 3, 5), dtype=np.uint8),
        "a_longer_name": rng.integers(-9, 9, (2, 1), dtype=np.int16),
        "fractions": rng.random((1, 7)),
        "tiny": np.array([[7]], np.uint8),
    }
    others = {"text": "hello", "cells": np.array([["a", 1]], object), "structure": {"field": 1}}
    found = read_arrays(saved(others | arrays, compress))
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].shape == array.shape and (found[name] == array).all()


def test_the_other_byte_order_is_read():
    """One 1×2 matrix of 16-bit numbers, called y, as a big-endian machine writes it."""
    flags = struct.pack(">4I", 6, 8, 10, 0)  # class 10: 16 bits with sign
    shape = struct.pack(">2I2i", 5, 8, 1, 2)
    name = struct.pack(">2H", 1, 1) + b"y\0\0\0"  # a small element: size, then kind
    values = struct.pack(">2H2h", 4, 3, -2, 300)
    matrix = flags + shape + name + values
    raw = b" " * 124 + b"\x01\x00MI" + struct.pack(">2I", 14, len(matrix)) + matrix
    assert read_arrays(raw)["y"].tolist() == [[-2, 300]]


def test_every_truncation_and_random_damage_ends_in_an_exception_or_arrays(rng):
    for compress in (False, True):
        good = saved({"X": rng.integers(0, 256, (2, 2, 3, 4), dtype=np.uint8)}, compress)
        for keep in [*range(128), *range(129, len(good))]:
            with pytest.raises(Exception):  # noqa: B017  which one is the decoder's own affair
                read_arrays(good[:keep])
        for _ in range(500):
            bad = bytearray(good)
            bad[rng.integers(128, len(bad))] = rng.integers(256)
            try:
                found = read_arrays(bytes(bad))
            except Exception:
                continue
            assert all(isinstance(array, np.ndarray) for array in found.values())
