from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from official_forms import Written


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def declared_official(monkeypatch: pytest.MonkeyPatch) -> Callable[[Written], Written]:
    """Declares the files of a tiny dataset to be the official ones, byte for byte."""

    def declare(written: Written) -> Written:
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in written.files]
        files = zip(written.source.official, digests, strict=True)
        official = tuple(replace(file, sha256=digest) for file, digest in files)
        monkeypatch.setattr(written.source, "official", official)
        return written

    return declare
