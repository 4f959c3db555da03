"""Parts of a document that are made from what was measured, between two comments each."""

from __future__ import annotations

import re
from pathlib import Path

from vhl.errors import VHLError
from vhl.files import write_bytes
from vhl.paper.claims import checklist
from vhl.paper.evidence import Evidence
from vhl.paper.light import comparisons
from vhl.paper.rows import TABLES
from vhl.paper.table import table
from vhl.paper.theory import terms_table

_PART = re.compile(
    r"(<!-- vhl paper (?P<what>table (?P<table>\S+)|claims|theory|light) -->\n)"
    r"(?:(?!<!-- vhl paper).)*?(<!-- end -->)",
    re.DOTALL,
)


_PARTS = {"claims": checklist, "light": comparisons, "theory": terms_table}
_BEGINNING = re.compile(r"^<!-- vhl paper .* -->$", re.MULTILINE)


def renewed(text: str, evidence: Evidence) -> str:
    """The document with its parts made anew: ``<!-- vhl paper table cifar10 -->`` to ``<!-- end -->``."""

    def make(part: re.Match[str]) -> str:
        if part["what"] in _PARTS:
            return f"{part[1]}{_PARTS[part['what']](evidence)}{part[4]}"
        if part["table"] not in TABLES:
            raise VHLError(f"The document asks for a table {part['table']!r}; there are {', '.join(TABLES)}.")
        return f"{part[1]}{table(part['table'], evidence).markdown()}{part[4]}"

    made = _PART.sub(make, text)
    if len(_BEGINNING.findall(text)) != len(_PART.findall(text)):
        raise VHLError("A part of the document that begins with <!-- vhl paper ... --> has no <!-- end -->.")
    return made


def refresh(file: Path, evidence: Evidence) -> None:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise VHLError(f"{file} cannot be read ({error}).") from None
    write_bytes(file, renewed(text, evidence).encode())
