"""How many threads PyTorch should use on a CPU."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def choose_threads() -> None:
    """No more threads than cores we may use, unless the user has said how many.

    PyTorch counts the machine's cores; in a container with a share of them its threads would wait for each
    other most of the time.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), usable_cores())))


def usable_cores(quota: Path = _QUOTA) -> int:
    """Cores that this process may run on, and of whose time it may have so much."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if allowed == "max" else min(cores, math.ceil(int(allowed) / int(period)))
