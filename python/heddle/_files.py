"""Tensor files: safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import _core
from ._alignment import aligned
from ._named_arguments import refuses_by_name
from ._options import is_unicode, refuse_no_dict, refuse_type
from ._tensor import public
from ._types import Array


class TensorFile(NamedTuple):
    """The content of a safetensors file: `tensors` by name, and `metadata`, texts. `skipped` has the reason for each
    tensor that was skipped."""

    tensors: dict[str, Any]
    metadata: dict[str, str]
    skipped: dict[str, str]


@refuses_by_name
def load(path: str | os.PathLike[str]) -> TensorFile:
    """Reads a .safetensors file. Tensors are NumPy arrays; bfloat16, float8_e4m3fn and float8_e5m2, which NumPy does
    not have, are heddle.Tensor. Tensors with an element type or rank that heddle does not support are skipped.

    Raises OSError, with the file's name and what is wrong, for a file that cannot be read or breaks a rule of the
    format; all rules are checked.

    >>> import os, tempfile, numpy as np, heddle
    >>> path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
    >>> heddle.save(path, {"x": np.zeros(3)}, {"made by": "a test"})
    >>> heddle.load(path)
    TensorFile(tensors={'x': array([0., 0., 0.])}, metadata={'made by': 'a test'}, skipped={})
    """
    tensors, metadata, skipped = _core.load(os.fsencode(path))
    return TensorFile({name: public(tensor) for name, tensor in tensors.items()}, metadata, skipped)


@refuses_by_name
def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a .safetensors file, `path`, of `tensors`: arrays on the CPU by name (NumPy's, heddle.Tensor, or anything
    with __dlpack__), and `metadata`, texts by name. It first writes a temporary file in the same folder: if anything
    fails, an old file does not change.

    Raises OSError, NotImplementedError for memory of a GPU and element types that heddle does not have, TypeError for a
    value that is no array.
    """
    file = os.fsencode(path)
    refuse_no_dict("tensors", tensors, "arrays")
    if metadata:
        refuse_no_dict("metadata", metadata, "texts")
    try:
        _core.save(file, {name: aligned(x) for name, x in tensors.items()}, dict(metadata or {}))
    except TypeError:
        for name, array in tensors.items():
            try:
                _core.check_array(array)
            except TypeError:
                refuse_type(f"tensor '{name}'", array, "an array of NumPy, or anything with __dlpack__,")
        for key, value in (metadata or {}).items():
            if not isinstance(value, str) or not is_unicode(value):
                refuse_type(f"metadata[{key!r}]", value, "text")
        raise
