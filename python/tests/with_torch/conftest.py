"""Skips this folder where torch is not installed."""

import importlib.util
import sys
from pathlib import Path

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*.py"]
sys.path.insert(0, str(Path(__file__).parent))  # agreement.py


def pytest_report_header():
    if collect_ignore_glob:
        return "heddle.torch is not tested: torch is not installed"
    import torch

    return f"torch {torch.__version__}"
