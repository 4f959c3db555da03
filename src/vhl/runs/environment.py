"""What a run ran on: versions and hardware, but no host name and no path."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from vhl.version import __version__


def environment() -> dict[str, Any]:
    packages = ("numpy", "scikit-learn", "pydantic", "safetensors")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        # PyTorch's own word names its build, which its metadata may not
        "packages": {
            "vhl": __version__,
            "torch": str(torch.__version__),
            **{p: version(p) for p in packages},
        },
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
