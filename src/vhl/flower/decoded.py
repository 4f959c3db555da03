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
from vhl.errors import VHLError
from vhl.files import write_bytes

_log = logging.getLogger(__name__)
_SETS = ("train", "test", "validation")


def load_decoded(source: Folder, seed: int, store: Path) -> Dataset:
    """What ``source.load`` gives, from a file in ``store`` as long as nothing in the folder has changed."""
    key = _fingerprint(source, seed)
    file = store / "decoded" / f"{key[:16]}.safetensors"
    dataset = _read(file, key)
    if dataset is None:
        dataset = source.load(store, seed, whole=False)
        try:
            _write(file, dataset, key)
        except VHLError as error:
            _log.warning("Images are decoded anew for every message: %s", error)
    return dataset


def _fingerprint(source: Folder, seed: int) -> str:
    """SHA-256 of the settings, and of every file's name, size and time of change."""
    root = Path(source.path).expanduser()
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
    write_bytes(file, save(arrays, {"key": key, "classes": json.dumps(dataset.classes)}))
