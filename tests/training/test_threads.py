from __future__ import annotations

import os

import joblib
import pytest
import torch

from vhl.training.threads import choose_threads


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch):
    """PyTorch has these many threads at first; those after."""
    before = torch.get_num_threads()

    def chosen(at_first: int, cores: int, said: str | None = None) -> int:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if said is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", said)
        monkeypatch.setenv("LOKY_MAX_CPU_COUNT", str(cores))  # as if the machine gave us no more
        torch.set_num_threads(at_first)
        choose_threads()
        return torch.get_num_threads()

    yield chosen
    torch.set_num_threads(before)


def test_no_more_threads_than_cores_unless_the_user_says_so(threads):
    assert threads(3, cores=1) == 1
    assert threads(1, cores=64) == 1  # a user of the library who set one thread keeps it
    assert threads(3, cores=1, said="3") == 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be taken away here")
def test_cores_are_those_that_the_process_may_run_on(threads):
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert joblib.cpu_count() == 1 == threads(3, cores=64)
    finally:
        os.sched_setaffinity(0, allowed)
