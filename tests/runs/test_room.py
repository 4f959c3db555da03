from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vhl.runs


def test_what_lies_on_disk_is_read_without_what_trains() -> None:
    """Every module of the room, in a process of its own."""
    modules = [f"vhl.runs.{file.stem}" for file in Path(next(iter(vhl.runs.__path__))).glob("[a-z]*.py")]
    script = f"import sys, {', '.join(modules)}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert set(modules) <= set(loaded.split())
    above = (
        "training",
        "rounds",
        "session",
        "report",
        "deploy",
        "dropin",
        "paper",
        "analysis",
        "bench",
        "cli",
    )
    found = {name.split(".")[1] for name in loaded.split() if name.startswith("vhl.")}
    assert not found & set(above)
