"""The present content of symbolic tensors that depend on no score and no index, for Python's code that needs numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..._tracing.numbers import Number
from .recording import Traced

# They give a tensor's content to Python without an operation that could be seen.
READERS = frozenset((torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__))


def remember(result: Any, func: Any, args: Any, kwargs: Any) -> None:
    """Notes how what a result holds is computed from what the operands hold."""
    if any(not holds(one) for one in args) or not all(holds(one) for one in tree_leaves((args, kwargs))):
        return

    def content() -> Any:
        operands, named = tree_map(plain, (args, kwargs))
        return func(*operands, **named)

    if isinstance(result, Traced):
        result._content = content
    elif isinstance(result, (list, tuple)):
        for i, one in enumerate(result):
            if isinstance(one, Traced):
                one._content = lambda i=i: content()[i]


def holds(value: Any) -> bool:
    return not isinstance(value, Traced) or value._content is not None


def plain(value: Any) -> Any:
    if isinstance(value, Number):
        number = value.concrete()
        return int(number) if isinstance(number, torch.SymInt) else number  # torch.tensor() of a SymInt is of 32 bits
    if not isinstance(value, Traced):
        return value
    if value._content is None:
        raise LookupError("written since")
    return value._content()


def content_of(tensor: Traced) -> torch.Tensor | None:
    """None where it depends on a score or an index, where the mod wrote into what it came of, and of tensors without
    content (fake ones)."""
    if tensor._content is None:
        return None
    try:
        found = plain(tensor)
    except LookupError:
        return None
    return found if type(found) in (torch.Tensor, torch.nn.Parameter) else None


def depends_on_content(operands: Any) -> bool:
    """Whether there are tensors among them, all with known content, and none is fake or of a transform."""
    tensors = [one for one in tree_leaves(operands) if isinstance(one, torch.Tensor)]
    return bool(tensors) and not torch.compiler.is_exporting() and all(
        one._content is not None if isinstance(one, Traced) else type(one) in (torch.Tensor, torch.nn.Parameter)
        for one in tensors)


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """The function's result for what its operands hold."""
    operands, named = tree_map(plain, (args, kwargs))
    return func(*operands, **named)
