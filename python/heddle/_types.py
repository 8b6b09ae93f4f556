"""The types that signatures name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from ._core import Expr

# A score_mod, mask_mod or weight_mod; heddle.mods.Mod is callable.
ModLike: TypeAlias = Callable[..., Any] | str | Expr | None
ParamValue: TypeAlias = float | int | bool


class Array(Protocol):
    """An array of NumPy, PyTorch, CuPy, JAX, ... or heddle.Tensor: whatever exports its memory by DLPack."""

    @property
    def __dlpack__(self) -> Callable[..., Any]: ...
