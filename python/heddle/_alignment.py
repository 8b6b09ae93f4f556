"""Arrays whose memory the library reads: aligned to their elements, in the machine's byte order."""

from __future__ import annotations

from typing import Any


def aligned(x: Any) -> Any:
    """The array, or a copy if its memory is not aligned to its elements (a field of a packed record, a view at an odd
    offset) or has the other byte order (of a file of another machine)."""
    if hasattr(x, "clone") and hasattr(x, "data_ptr"):
        return x.clone() if x.device.type == "cpu" and x.data_ptr() % x.element_size() else x
    if not hasattr(x, "__array_interface__") or not hasattr(x, "flags") or is_plain(x):
        return x
    return x.astype(x.dtype.newbyteorder("="), order="C")


def is_plain(x: Any) -> bool:
    """Whether NumPy exports the array by DLPack, and the library reads it."""
    return x.flags.aligned and x.dtype.isnative and not any(stride % x.itemsize for stride in x.strides)


def align_captures(arguments: Any) -> bool:
    """Puts copies in place of the captures that are not aligned. Whether there was one. For calls that read captures
    once: a plan's later runs would not see what changes in them."""
    captures = arguments.captures
    copies = {name: aligned(x) for name, x in captures.items()}
    if all(copies[name] is x for name, x in captures.items()):
        return False
    arguments.captures = copies
    return True
