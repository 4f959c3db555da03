from __future__ import annotations

from official_forms import write


def test_no_file_but_the_official_one_is_opened(tmp_path, complains):
    """SciPy's reader ends the process on some damaged files."""
    written = write("svhn", tmp_path)
    with complains(f"{written.files[0]} is not the official file", "SHA-256 differs", "vhl data get svhn"):
        written.read()
