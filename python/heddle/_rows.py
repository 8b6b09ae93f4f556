"""Arrays in the form in which the library reads them: rows of q, k, v, o, d_o and lse one element after the other, all
memory aligned to its elements. Copies are made on the CPU alone: on a GPU the library could not know on which
stream."""

from __future__ import annotations

from typing import Any

from ._alignment import aligned


def with_unit_rows(*arrays: Any) -> tuple[Any, ...] | None:
    """The arrays, those of NumPy and torch in other orders (Fortran's, transposed), and those that are not aligned to
    their elements, as copies. None if all are right."""
    copies = tuple([with_unit_row(x) for x in arrays])
    return None if all(x is y for x, y in zip(copies, arrays)) else copies


def with_unit_row(x: Any) -> Any:
    if not hasattr(x, "shape") or not x.shape:
        return x
    is_row = x.shape[-1] < 2
    if hasattr(x, "contiguous"):
        return aligned(x.contiguous() if x.device.type == "cpu" and x.stride(-1) != 1 and not is_row else x)
    if not hasattr(x, "__array_interface__") or not hasattr(x, "flags"):
        return x
    x = aligned(x)
    return x if is_row or x.strides[-1] == x.itemsize else x.copy(order="C")
