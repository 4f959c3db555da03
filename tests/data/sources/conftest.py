"""Tiny datasets in the official formats, written byte by byte, independently of the readers."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def write_idx() -> Callable[..., bytes]:
    def write(file: Path, values: np.ndarray, magic: bytes | None = None) -> bytes:
        header = magic or bytes((0, 0, 8, values.ndim))
        raw = header + struct.pack(f">{values.ndim}I", *values.shape) + values.astype(np.uint8).tobytes()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(raw))
        return raw

    return write


@pytest.fixture
def cifar_record() -> Callable[..., bytes]:
    """A record of the binary distributions: labels, then the red, the green and the blue plane."""

    def record(image: np.ndarray, *labels: int) -> bytes:
        return bytes(labels) + b"".join(image[:, :, channel].tobytes() for channel in range(3))

    return record


@pytest.fixture
def python2_pickle() -> Callable[..., bytes]:
    """What Python 2's cPickle with protocol 2 and NumPy 1 wrote, opcode by opcode."""

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def array(values: np.ndarray) -> bytes:
        shape = number(values.shape[0]) + number(values.shape[1]) + b"\x86"
        raw = values.tobytes()
        kind = b"cnumpy\ndtype\n" + text("u1") + b"K\x00K\x01\x87R(K\x03" + text("|")
        kind += b"NNN" + number(-1) + number(-1) + b"K\x00tb"
        start = (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text("b") + b"\x87R(K\x01"
        )
        return start + shape + kind + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"

    def write(images: np.ndarray, labels: list[int], label_key: str) -> bytes:
        rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        listed = b"](" + b"".join(number(label) for label in labels) + b"e"
        return b"\x80\x02}(" + text("data") + array(rows) + text(label_key) + listed + b"u."

    return write


@pytest.fixture
def pack() -> Callable[..., None]:
    """Write a .tar.gz of a folder's files, as the official archives are made."""

    def write(archive: Path, folder: str, files: dict[str, bytes]) -> None:
        with tarfile.open(archive, "w:gz") as members:
            for name, content in files.items():
                member = tarfile.TarInfo(f"{folder}/{name}")
                member.size = len(content)
                members.addfile(member, io.BytesIO(content))

    return write
