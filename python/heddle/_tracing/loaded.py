"""NumPy and torch where the program has imported them: this package imports neither for itself."""

from __future__ import annotations

import sys
import types
from typing import Any

NEEDED = {"numpy": "ndarray", "torch": "Tensor"}  # a type of each, which a module of that name has if it is the library


def loaded(name: str) -> Any:
    """The library. None if it is not imported, or not to the end yet."""
    module = sys.modules.get(name)
    if type(module) is not types.ModuleType or getattr(module.__spec__, "_initializing", False):
        return None
    return module if isinstance(getattr(module, NEEDED[name], None), type) else None
