"""Figures as files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from vhl.files import write_bytes

METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Kinds of files; without a date, so that the same numbers give the same file."""
_DPI = 300


def save(figure: Figure, file: Path) -> None:
    """Write a figure, of the kind that the file's name says."""
    kind, content = file.suffix.lower(), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "vhl"}):  # else its identifiers are random
        figure.savefig(content, format=kind[1:], dpi=_DPI, metadata=METADATA[kind])
    write_bytes(file, content.getvalue())
