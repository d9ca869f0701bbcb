from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

CODE = "from graftlm.plugins.resolve import resolve_class_path\nprint(resolve_class_path('edited.code:VALUE'))"


@pytest.mark.parametrize("age_s", [0, 60])
def test_an_edit_of_the_same_length_within_a_second_counts(tmp_path, age_s):
    """Bytecode of a file that was just written is not kept; that of an older one is, so that starts stay fast."""
    (tmp_path / "edited").mkdir()
    (tmp_path / "edited" / "__init__.py").touch()
    file = tmp_path / "edited" / "code.py"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    when = time.time() + 30 - age_s  # in the future, so that a slow machine does not make it old
    printed = []
    for value in (1, 2):
        file.write_text(f"VALUE = {value}\n")
        for source in (file, file.with_name("__init__.py")):
            os.utime(source, (when, when))
        done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
        printed.append(done.stdout.strip())

    assert printed == (["1", "2"] if age_s == 0 else ["1", "1"])
    assert bool(list(tmp_path.rglob("*.pyc"))) == (age_s != 0)
