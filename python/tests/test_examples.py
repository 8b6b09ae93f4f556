"""The programs of examples/python run, and print what they are for."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "python").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    for needed in ("torch", "transformers"):
        if needed in path.read_text(encoding="utf-8") and importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    run = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() and "False" not in run.stdout


def test_there_are_examples():
    assert len(EXAMPLES) >= 5
