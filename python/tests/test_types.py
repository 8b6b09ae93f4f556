"""The types that the package states: of itself, and for a user's program, which also runs."""

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import heddle

PROGRAM = str(Path(__file__).with_name("typed_user.py"))


def package():
    """All of it; without torch, what does not import torch."""
    if importlib.util.find_spec("torch"):
        return ["-p", "heddle"]
    modules = sorted(path.stem for path in Path(heddle.__file__).parent.glob("*.py") if path.stem not in ("__init__", "hf"))
    return ["-m", "heddle", *(part for name in modules for part in ("-m", f"heddle.{name}"))]


def test_strict_types(request):
    pytest.importorskip("mypy")
    packages = str(Path(heddle.__file__).parent.parent)
    cache = request.config.cache.mkdir("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache)]
    for what in (package(), [PROGRAM]):
        environment = {**os.environ, "MYPYPATH": "" if "site-packages" in packages else packages}
        result = subprocess.run([*command, *what], capture_output=True, text=True, env=environment, timeout=300)
        assert result.returncode == 0, result.stdout + result.stderr


def test_the_program_runs():
    runpy.run_path(PROGRAM)
