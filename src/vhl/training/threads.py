"""How many threads PyTorch should use on a CPU."""

from __future__ import annotations

import os

import joblib
import torch


def choose_threads() -> None:
    """No more threads than cores we may use, unless the user has said how many.

    PyTorch counts the machine's cores; in a container with a share of them its threads would wait for each
    other most of the time.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), joblib.cpu_count()))
