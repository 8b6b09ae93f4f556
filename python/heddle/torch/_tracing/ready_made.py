"""Ready-made mods (heddle.mods) of torch's tensors: heddle's own tracer makes their expressions, since their formulas
stand in C++."""

from __future__ import annotations

import re
from typing import Any

import torch

from ... import _core
from ..._alignment import aligned, is_plain
from ..._dtypes import dtype_name
from ..._mod import Mod
from ..._tracing.trace import Traced
from .recording import ModKind


def is_ready_made(mod: Any) -> bool:
    """Whether all parts of a combined mod are heddle.mods': a user's functions are torch's code."""
    if not isinstance(mod, Mod):
        return isinstance(mod, _core.Expr)
    recipe = mod.recipe
    return recipe is not None and (recipe[0] not in ("&", "|", "~") or all(map(is_ready_made, recipe[1:])))


def ready_made(mod: Mod, kind: ModKind) -> tuple[Any, dict[str, torch.Tensor]]:
    """The expression of a ready-made mod, and the tensors that it reads, by names of this kind of mods."""
    if mod.expr is not None:
        return mod.expr, {}
    traced = Traced()
    expr = traced.of(mod.function, kind.arguments)
    captures = {kind.prefix + name: as_tensor(array) for name, array in traced.captures.items()}
    if not kind.prefix or not captures:
        return expr, captures
    text = re.sub(r"\b(" + "|".join(traced.captures) + r")\b", lambda name: kind.prefix + name[1], str(expr))
    return _core.parse(text, {name: (dtype_name(x), x.dim()) for name, x in captures.items()}, {}), captures


def as_tensor(array: Any) -> Any:
    """The array as a tensor of the same memory; of a copy where torch takes no such memory, or only with a warning."""
    if isinstance(array, torch.Tensor):
        return array
    if not hasattr(array, "__array_interface__"):
        return torch.utils.dlpack.from_dlpack(array)
    return torch.as_tensor(array if is_shared(array) else aligned(array).copy(), device="cpu")


def is_shared(array: Any) -> bool:
    """Whether a tensor can share the memory of NumPy's array."""
    return array.flags.writeable and is_plain(array) and all(stride >= 0 for stride in array.strides)
