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


NEEDS = {"torch": "torch", "hf": "torch", "viz": "matplotlib"}


def package():
    """All of it, but for what needs a package that is not here."""
    here = Path(heddle.__file__).parent
    lacking = {name for name, needed in NEEDS.items() if importlib.util.find_spec(needed) is None}
    if not lacking:
        return ["-p", "heddle"]
    modules = [path.stem for path in here.glob("*.py") if path.stem != "__init__" and path.stem not in lacking]
    modules += [] if "torch" in lacking else [f"torch.{path.stem}" for path in here.glob("torch/*.py")]
    return [
        "-m",
        "heddle",
        *(part for name in sorted(modules) for part in ("-m", f"heddle.{name.removesuffix('.__init__')}")),
    ]


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
