"""Parts of a document that are made anew, and the rest of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vhl.paper.claims import checklist
from vhl.paper.document import refresh, renewed
from vhl.paper.evidence import Evidence
from vhl.paper.table import table
from vhl.runs.digest import Digest

PLAIN = "cifar10/a0.1-e1-k10/fedavg"
TEXT = """# Results
Words with a \\1 and a \\g<what> before it.
<!-- vhl paper table cifar10 -->
old
lines
<!-- end -->
between
<!-- vhl paper claims -->
<!-- end -->
<!-- vhl paper table svhn --> in a line is none
<!-- a comment --> after
"""


@pytest.fixture
def evidence(digest: Callable[..., Digest]) -> Evidence:
    return Evidence([digest(PLAIN, [0.1, 0.5])])


def test_parts_are_made_anew_and_nothing_else(evidence: Evidence) -> None:
    found = renewed(TEXT, evidence)
    before, rest = TEXT.split("old\nlines\n")
    between, after = rest.split("-->\nbetween\n")[1].split("<!-- end -->")
    part = table("cifar10", evidence).markdown()
    assert "| 2 of 1000 |" in part and "vhl paper run" in part
    expected = f"{before}{part}<!-- end -->\nbetween\n{between}{checklist(evidence)}<!-- end -->{after}"
    assert found == expected


def test_again_changes_nothing(evidence: Evidence) -> None:
    once = renewed(TEXT, evidence)
    assert once != TEXT and renewed(once, evidence) == once


def test_later_evidence_replaces_earlier(evidence: Evidence) -> None:
    assert renewed(renewed(TEXT, evidence), Evidence([])) == renewed(TEXT, Evidence([]))


def test_a_document_without_parts_stays_as_it_is(evidence: Evidence) -> None:
    assert renewed("plain\ntext", evidence) == "plain\ntext"


def test_a_table_that_the_paper_does_not_have(evidence: Evidence, complains: Any) -> None:
    with complains("'cifar11'", "cifar10"):
        renewed(TEXT.replace("table cifar10", "table cifar11"), evidence)


def test_a_file_is_renewed_in_its_place(evidence: Evidence, tmp_path: Path) -> None:
    file = tmp_path / "results.md"
    file.write_text(TEXT, encoding="utf-8")
    refresh(file, evidence)
    assert file.read_text(encoding="utf-8") == renewed(TEXT, evidence)
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_with_a_table_that_does_not_exist_is_left_alone(
    evidence: Evidence, tmp_path: Path, complains: Any
) -> None:
    file, text = tmp_path / "results.md", TEXT.replace("table cifar10", "table cifar11")
    file.write_text(text, encoding="utf-8")
    with complains("'cifar11'"):
        refresh(file, evidence)
    assert file.read_text(encoding="utf-8") == text


def test_a_file_that_cannot_be_read(evidence: Evidence, tmp_path: Path, complains: Any) -> None:
    for path in (tmp_path / "absent.md", tmp_path):
        with complains(path, "cannot be read"):
            refresh(path, evidence)


def test_a_document_that_is_no_text(tmp_path: Path, complains: Any) -> None:
    (tmp_path / "x.md").write_bytes(b"\xff\xfe")
    with complains("x.md"):
        refresh(tmp_path / "x.md", Evidence([]))


def test_a_part_without_an_end_does_not_swallow_the_next(complains: Any) -> None:
    text = "<!-- vhl paper table svhn -->\n\nmine\n<!-- vhl paper claims -->\n<!-- end -->\n"
    with complains("end"):
        renewed(text, Evidence([]))


def test_a_table_with_a_dash_is_refused_too(complains: Any) -> None:
    with complains("cifar-10"):
        renewed("<!-- vhl paper table cifar-10 -->\n<!-- end -->\n", Evidence([]))
