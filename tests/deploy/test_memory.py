from __future__ import annotations

from pathlib import Path

import torch

from vhl.deploy.memory import Memory


def rounds(folder: Path) -> list[int]:
    return sorted(int(file.stem.split("-")[1]) for file in folder.iterdir())


def test_vectors_are_kept_beside_those_that_they_were_made_of(tmp_path):
    memory = Memory(tmp_path)
    for round_, beside, left in [
        (0, None, [0]),
        (3, 0, [0, 3]),
        (5, 0, [0, 5]),
        (6, 5, [5, 6]),
        (9, 6, [6, 9]),
    ]:
        memory.keep(round_, {"control": torch.full((2,), float(round_))}, beside=beside)
        assert rounds(tmp_path) == left
    for round_ in (6, 9):
        kept = Memory(tmp_path).recall(round_)  # a process of its own
        assert kept is not None and kept["control"].tolist() == [round_, round_]


def test_what_is_not_there_or_damaged_is_lost(tmp_path):
    memory = Memory(tmp_path)
    memory.keep(1, {"control": torch.zeros(2)}, beside=None)
    assert memory.recall(None) is None and memory.recall(0) is None
    next(tmp_path.iterdir()).write_bytes(b"nothing")
    assert memory.recall(1) is None


def test_a_client_that_keeps_nothing_has_no_folder(tmp_path):
    Memory(tmp_path / "none").keep(0, {}, beside=None)
    assert not (tmp_path / "none").exists()
