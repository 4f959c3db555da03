"""Reading a pickle of plain values and NumPy arrays without trusting it."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np


class RefusedError(Exception):
    """A pickle asked for something that plain data do not need."""


def load(raw: bytes) -> dict[str, Any]:
    """The dictionary in a pickle of Python 2 or 3, its NumPy arrays rebuilt, its keys as text.

    Only arrays, text, bytes, numbers, lists, tuples and dictionaries are admitted. NumPy's own unpickling is
    not called, because it trusts flags in the stream; stand-ins below record what the stream says.
    """
    content = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
    if not isinstance(content, dict):
        raise ValueError("it holds no dictionary")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): _plain(value)
        for key, value in content.items()
    }


def _plain(value: Any) -> Any:
    return value.rebuild() if isinstance(value, _Array) else value


class _DataType:
    """Stands in for ``numpy.dtype``: simple numbers only."""

    def __init__(self, code: str, *flags: object) -> None:
        self.type = np.dtype(code)
        if self.type.kind not in "biuf":
            raise RefusedError(f"an array of type {code}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.type = self.type.newbyteorder(state[1])


class _Array:
    """Stands in for ``numpy.ndarray``."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.type, self.fortran, self.raw = state

    def rebuild(self) -> np.ndarray:
        return _from_buffer(self.raw, self.type, self.shape, "F" if self.fortran else "C")


def _reconstruct(*ignored: object) -> _Array:
    return _Array()


def _from_buffer(raw: bytes | str, kind: _DataType, shape: tuple[int, ...], order: Any) -> np.ndarray:
    return np.frombuffer(_encode(raw), kind.type).reshape(shape, order=order)


def _scalar(kind: _DataType, raw: bytes | str) -> Any:
    return np.frombuffer(_encode(raw), kind.type)[0].item()


def _encode(text: bytes | str, encoding: str = "latin1") -> bytes:
    """Stands in for ``_codecs.encode``; Python 2 and old protocols keep bytes as latin-1 text."""
    if encoding != "latin1":
        raise RefusedError(f"the encoding {encoding}")
    return text.encode("latin1") if isinstance(text, str) else bytes(text)


_ADMITTED = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DataType,
    ("_codecs", "encode"): _encode,
    **{
        (f"numpy.{core}.{module}", function): stand_in
        for core in ("core", "_core")  # NumPy 2 renamed it
        for module, function, stand_in in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise RefusedError(f"{module}.{name}") from None
