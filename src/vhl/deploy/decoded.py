"""A folder of images, decoded once: a node has a process for every message, and would do so each time."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from vhl.data.images import Dataset, ImageSet
from vhl.data.sources.folder import Folder
from vhl.deploy.private import make_private, write_private
from vhl.errors import VHLError

_log = logging.getLogger(__name__)
_SETS = ("train", "test", "validation")


def load_decoded(source: Folder, seed: int, store: Path) -> Dataset:
    """What ``source.load`` gives, from a file in ``store`` as long as nothing in the folder has changed.

    The file is its owner's alone, and the only one of that folder: who deletes an image means copies too.
    """
    root = Path(source.path).expanduser()
    place, key = hashlib.sha256(str(root.resolve()).encode()).hexdigest(), _fingerprint(source, root, seed)
    file = store / "decoded" / f"{place[:16]}-{key[:16]}.safetensors"
    dataset = _read(file, key)
    if dataset is None:
        dataset = source.load(store, seed, whole=False)
        try:
            make_private(file.parent)
            _write(file, dataset, key)
            _forget_all_but(file)
        except VHLError as error:
            _log.warning("Images are decoded anew for every message: %s", error)
    return dataset


def _fingerprint(source: Folder, root: Path, seed: int) -> str:
    """SHA-256 of the settings, and of every file's name, size and time of change."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    stats = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    words = json.dumps([source.model_dump(mode="json"), seed, str(root.resolve()), stats])
    return hashlib.sha256(words.encode()).hexdigest()


def _read(file: Path, key: str) -> Dataset | None:
    try:
        with safe_open(file, "numpy") as stored:
            about = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    if about.get("key") != key:
        return None
    found = {
        name: ImageSet(arrays[f"{name}.images"], arrays[f"{name}.labels"])
        for name in _SETS
        if f"{name}.images" in arrays
    }
    classes = tuple(json.loads(about["classes"]))
    return Dataset(found["train"], found["test"], classes, validation=found.get("validation"))


def _write(file: Path, dataset: Dataset, key: str) -> None:
    sets = {name: getattr(dataset, name) for name in _SETS}
    arrays: dict[str, np.ndarray] = {}
    for name, own in sets.items():
        if own is not None:
            arrays |= {f"{name}.images": own.images, f"{name}.labels": own.labels}
    write_private(file, save(arrays, {"key": key, "classes": json.dumps(dataset.classes)}))


def _forget_all_but(file: Path) -> None:
    """Delete earlier decodings of the same folder, and what a kill has left of one."""
    place = file.name.partition("-")[0]
    for other in file.parent.glob(f"{place}-*"):
        if other != file:
            other.unlink(missing_ok=True)
