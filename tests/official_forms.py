"""Tiny datasets in the official forms, written byte by byte, independently of the readers."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.io import savemat

from vhl.config.listing import available
from vhl.data.images import Dataset
from vhl.data.sources.base import Source

_RNG = np.random.default_rng(7)
COLOUR = _RNG.integers(0, 256, (13, 32, 32, 3), dtype=np.uint8)
GREY = _RNG.integers(0, 256, (13, 28, 28, 1), dtype=np.uint8)
LABELS = [*range(10), 9, 0, 4]
"""Of ten training and three test images."""
COARSE = 7
"""The label of all images that CIFAR-100 has beside the fine one."""


@dataclass(frozen=True)
class Written:
    """A tiny dataset in a data directory."""

    source: type[Source]
    data_dir: Path
    files: list[Path]
    images: np.ndarray
    """What the source should read: first the training, then the test images."""

    def read(self) -> Dataset:
        return self.source().read(self.data_dir, seed=0)


def cifar_record(image: np.ndarray, *labels: int) -> bytes:
    """A record of the binary distributions: labels, then the red, the green and the blue plane."""
    return bytes(labels) + b"".join(image[:, :, channel].tobytes() for channel in range(3))


def python2_pickle(images: np.ndarray, labels: list[int], label_key: str) -> bytes:
    """What Python 2's cPickle with protocol 2 and NumPy 1 wrote, opcode by opcode."""

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    kind = b"cnumpy\ndtype\n" + text("u1") + b"K\x00K\x01\x87R(K\x03" + text("|")
    kind += b"NNN" + number(-1) + number(-1) + b"K\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text("b") + b"\x87R(K\x01"
    shape = number(rows.shape[0]) + number(rows.shape[1]) + b"\x86"
    array = start + shape + kind + b"\x89T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text("data") + array + text(label_key) + listed + b"u."


def cifar_files(form: str) -> dict[str, bytes]:
    """The files of "cifar10 binary", "cifar100 python" and so on, by name."""
    name, kind, *_ = form.split()
    parts = {"train": slice(10), "test": slice(10, 13)}
    if name == "cifar10":
        parts = {f"data_batch_{n}": slice(2 * n - 2, 2 * n) for n in range(1, 6)} | {
            "test_batch": slice(10, 13)
        }
    files = {}
    for part, rows in parts.items():
        images, labels = COLOUR[rows], LABELS[rows]
        if kind == "binary":
            heads = [(label,) if name == "cifar10" else (COARSE, label) for label in labels]
            records = zip(images, heads, strict=True)
            files[f"{part}.bin"] = b"".join(cifar_record(image, *head) for image, head in records)
        elif "python 3" in form:
            rows_of_bytes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            files[part] = pickle.dumps({b"data": rows_of_bytes, b"labels": labels})
        else:
            files[part] = python2_pickle(images, labels, "labels" if name == "cifar10" else "fine_labels")
    return files


def pack(archive: Path, folder: str, files: dict[str, bytes]) -> None:
    """Write a .tar.gz of a folder's files, as the official archives are made."""
    with tarfile.open(archive, "w:gz") as members:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))


def _write_cifar(data_dir: Path, form: str, **replaced: bytes) -> list[Path]:
    """Some files may be replaced: their names without ``.bin``."""
    name, kind, *_ = form.split()
    stem = name.replace("cifar", "cifar-")
    files = {file: replaced.get(file.removesuffix(".bin"), raw) for file, raw in cifar_files(form).items()}
    folder = {"cifar10 binary": "cifar-10-batches-bin", "cifar10 python": "cifar-10-batches-py"}.get(
        f"{name} {kind}", f"{stem}-{kind}"
    )
    if form.endswith("archive"):
        pack(data_dir / f"{stem}-{kind}.tar.gz", folder, {"readme.html": b"hello", **files})
        return [data_dir / f"{stem}-{kind}.tar.gz"]
    (data_dir / folder).mkdir()
    for file, raw in files.items():
        (data_dir / folder / file).write_bytes(raw)
    return [data_dir / folder / file for file in files]


def idx(values: np.ndarray, magic: bytes | None = None) -> bytes:
    header = magic or bytes((0, 0, 8, values.ndim))
    raw = header + struct.pack(f">{values.ndim}I", *values.shape) + values.astype(np.uint8).tobytes()
    return gzip.compress(raw)


def _write_fmnist(data_dir: Path, form: str) -> list[Path]:
    folder, files = data_dir / "fashion-mnist", []
    folder.mkdir()
    for name, rows in (("train", slice(10)), ("t10k", slice(10, 13))):
        for kind, values in (("images-idx3", GREY[rows, ..., 0]), ("labels-idx1", np.array(LABELS[rows]))):
            files.append(folder / f"{name}-{kind}-ubyte.gz")
            files[-1].write_bytes(idx(values))
    return files


def _write_svhn(data_dir: Path, form: str) -> list[Path]:
    """MATLAB's order is height, width, channel, number; the digit 0 has the label 10."""
    (data_dir / "svhn").mkdir()
    files = [data_dir / "svhn" / f"{part}_32x32.mat" for part in ("train", "test")]
    for file, rows in zip(files, (slice(10), slice(10, 13)), strict=True):
        labels = np.array([label or 10 for label in LABELS[rows]], np.uint8)[:, None]
        savemat(file, {"X": COLOUR[rows].transpose(1, 2, 3, 0), "y": labels}, do_compression=True)
    return files


_CIFAR = ("binary folder", "binary archive", "python folder", "python archive")
_WRITERS: dict[str, Callable[..., list[Path]]] = {
    **{f"{name} {form}": _write_cifar for name in ("cifar10", "cifar100") for form in _CIFAR},
    "cifar10 python 3 folder": _write_cifar,
    "fmnist": _write_fmnist,
    "svhn": _write_svhn,
}
FORMS = list(_WRITERS)


def write(form: str, data_dir: Path, **replaced: bytes) -> Written:
    """Write one of ``FORMS`` into an empty data directory; some files of CIFAR's may be replaced."""
    source: type[Source] = available("sources")[form.split()[0]].load()
    files = _WRITERS[form](data_dir, form, **replaced)
    return Written(source, data_dir, files, GREY if form == "fmnist" else COLOUR)
