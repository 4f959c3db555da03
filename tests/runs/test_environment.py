from __future__ import annotations

import json
import os
import platform
import socket
from pathlib import Path

import pytest
import torch

from vhl.runs.environment import environment


def test_versions_and_hardware() -> None:
    found = environment()
    assert found["packages"]["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["cores"] == os.cpu_count() and found["threads"] == torch.get_num_threads()


def test_nothing_of_the_person_or_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "secrethost")
    monkeypatch.setattr(socket, "gethostname", lambda: "secrethost")
    for variable in ("HOME", "USER", "LOGNAME", "HOSTNAME", "VIRTUAL_ENV", "VHL_DATA"):
        monkeypatch.setenv(variable, "/secret/place")
    (tmp_path / "secret").mkdir()
    monkeypatch.chdir(tmp_path / "secret")
    text = json.dumps(environment())
    assert "secret" not in text
    assert not any(word.startswith("/") for word in text.replace('"', " ").split())


def test_it_is_in_the_run_folder(finished: Path) -> None:
    found = json.loads((finished / "environment.json").read_text(encoding="utf-8"))
    assert found["packages"] == environment()["packages"]
