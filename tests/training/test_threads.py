from __future__ import annotations

import os

import pytest
import torch

from vhl.training import threads


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", 64), ("150000 100000", 2), ("50000 100000", 1), ("9900000 100000", 64), ("nonsense", 64)],
)
def test_cores_are_those_of_the_container(tmp_path, monkeypatch, text, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    (tmp_path / "cpu.max").write_text(text)
    assert threads.usable_cores(tmp_path / "cpu.max") == cores


def test_cores_without_a_container_are_those_we_may_run_on(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 6}, raising=False)
    assert threads.usable_cores(tmp_path / "missing") == 3


@pytest.mark.parametrize(
    ("said", "cores", "before", "after"), [(None, 2, 8, 2), (None, 16, 8, 8), ("8", 2, 8, 8), (None, 0, 8, 1)]
)
def test_threads(monkeypatch, said, cores, before, after):
    chosen = [before]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: chosen[-1])
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    threads.choose_threads()
    assert chosen[-1] == after
