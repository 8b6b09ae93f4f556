"""A note for errors that Python, NumPy or torch raise in a mod's own code: they know nothing of symbolic arguments."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

MARK = "while heddle traced a mod: "


def add_note(error: BaseException, mod: Any, arguments: Sequence[str], accepted: str) -> None:
    """Says once in the error's notes what the mod was called with, and what is accepted of it."""
    if any(note.startswith(MARK) for note in getattr(error, "__notes__", ())):
        return
    name = getattr(mod, "__qualname__", type(mod).__name__)
    error.add_note(f"{MARK}{name} was called with symbolic {', '.join(arguments)}, which have no value yet{line_of(error)}; "
                   f"{accepted} are accepted")


def line_of(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return f" ({last[0].filename}:{last[0].lineno})" if last else ""
