"""Writing a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vhl.files import write_bytes
from vhl.report.content import content
from vhl.report.page import page
from vhl.runs.folder import RunFolder


def write_report(runs: Sequence[RunFolder], file: Path, **chosen: Any) -> dict[str, Any]:
    """Write the page, with what was ``chosen`` for its content; returns what is on it."""
    found = content(runs, **chosen)
    write_bytes(file, page(found).encode())
    return found
