"""Arrays whose memory is aligned to their elements, as the library reads them."""

from __future__ import annotations

from typing import Any


def aligned(x: Any) -> Any:
    """The array, or a copy if its memory is not aligned to its elements: a field of a packed record, a view at an odd
    offset."""
    if hasattr(x, "clone") and hasattr(x, "data_ptr"):
        return x.clone() if x.device.type == "cpu" and x.data_ptr() % x.element_size() else x
    return x.copy() if hasattr(x, "copy") and not getattr(getattr(x, "flags", None), "aligned", True) else x


def align_captures(arguments: Any) -> bool:
    """Puts copies in place of the captures that are not aligned. Whether there was one. For calls that read captures
    once: a plan's later runs would not see what changes in them."""
    captures = arguments.captures
    copies = {name: aligned(x) for name, x in captures.items()}
    if all(copies[name] is x for name, x in captures.items()):
        return False
    arguments.captures = copies
    return True
