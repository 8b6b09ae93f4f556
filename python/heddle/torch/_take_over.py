"""Unmodified code on heddle: torch's own functions lead to heddle's while enabled() or after activate()."""

from __future__ import annotations

import contextlib
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch.nn.attention import flex_attention as flex

from ._block_mask import create_block_mask
from ._flex import flex_attention
from ._sdpa import scaled_dot_product_attention

torchs_sdpa = torch.nn.functional.scaled_dot_product_attention
_lock = threading.Lock()
_depth = 0
_log: Counter[tuple[str, str]] = Counter()


class Entry(NamedTuple):
    """How many calls of torch's `function` went to `where`: "heddle", or "torch: " and the reason."""

    function: str
    where: str
    count: int  # type: ignore[assignment]  # hides tuple.count


def log() -> list[Entry]:
    """The calls since the program began, or since clear_log(), by function and destination.

    >>> import torch, heddle.torch
    >>> heddle.torch.clear_log()
    >>> q = torch.randn(1, 1, 4, 8)
    >>> with heddle.torch.enabled():
    ...     out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    >>> heddle.torch.log()
    [Entry(function='scaled_dot_product_attention', where='heddle', count=1)]
    """
    return [Entry(function, where, count) for (function, where), count in _log.items()]


def clear_log() -> None:
    """Forgets what log() has counted."""
    _log.clear()


def refuses(query: Any, *others: Any) -> str:
    """Why heddle does not take a call; empty if it does."""
    tensors = [x for x in (query, *others) if isinstance(x, torch.Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "an input requires a gradient"
    if any(x.is_nested or x.is_sparse for x in tensors):
        return "a nested or sparse tensor"
    if query.device.type not in ("cpu", "cuda"):
        return f"tensors on {query.device.type}"
    wide_on_gpu = query.device.type == "cuda" and query.dtype in (torch.float32, torch.float64)
    if wide_on_gpu or not query.dtype.is_floating_point:
        return f"{query.dtype} on {query.device.type}"
    return ""


def routed(name: str, ours: Callable[..., Any], torchs: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    tensors = (*args, *kwargs.values())
    query = next(x for x in tensors if isinstance(x, torch.Tensor))
    reason = refuses(query, *tensors)
    if torch.compiler.is_dynamo_compiling():
        return torchs(*args, **kwargs) if reason else ours(*args, **kwargs)
    if not reason:
        try:
            result = ours(*args, **kwargs)
            _log[name, "heddle"] += 1
            return result
        except NotImplementedError as error:
            reason = str(error)
    _log[name, f"torch: {reason}"] += 1
    return torchs(*args, **kwargs)


def sdpa(*args: Any, **kwargs: Any) -> Any:
    return routed("scaled_dot_product_attention", scaled_dot_product_attention, torchs_sdpa, args, kwargs)


def copy_of(function: types.FunctionType) -> types.FunctionType:
    """The function as it is now: its code may change."""
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


torchs_flex = copy_of(cast(types.FunctionType, flex.flex_attention))
torchs_create_block_mask = copy_of(cast(types.FunctionType, flex.create_block_mask))


def route_flex(*args: Any, **kwargs: Any) -> Any:
    return routed("flex_attention", flex_attention, torchs_flex, args, kwargs)


def route_create_block_mask(*args: Any, **kwargs: Any) -> Any:
    kwargs.pop("_compile", None)
    try:
        made = create_block_mask(*args[:7], **kwargs)
        if not torch.compiler.is_dynamo_compiling():
            _log["create_block_mask", "heddle"] += 1
        return made
    except NotImplementedError as error:
        _log["create_block_mask", f"torch: {error}"] += 1
        return torchs_create_block_mask(*args, **kwargs)


# The code that torch's function objects get, because others have imported them by name. It runs with torch's globals.
def _flex_code(*args: Any, **kwargs: Any) -> Any:
    from heddle.torch import _take_over

    return _take_over.route_flex(*args, **kwargs)


def _block_mask_code(*args: Any, **kwargs: Any) -> Any:
    from heddle.torch import _take_over

    return _take_over.route_create_block_mask(*args, **kwargs)


def activate() -> None:
    """Leads torch's scaled_dot_product_attention, flex_attention and create_block_mask to heddle, in all threads.

    Calls that heddle does not take go to torch; log() says why. deactivate() ends it. activate() may be nested.

    >>> import torch, heddle.torch
    >>> heddle.torch.activate()
    >>> q = torch.randn(1, 2, 4, 8)
    >>> torch.nn.functional.scaled_dot_product_attention(q, q, q).shape
    torch.Size([1, 2, 4, 8])
    >>> heddle.torch.deactivate()
    """
    global _depth
    with _lock:
        _depth += 1
        if _depth > 1:
            return
        torch.nn.functional.scaled_dot_product_attention = sdpa
        flex.flex_attention.__code__ = _flex_code.__code__
        flex.create_block_mask.__code__ = _block_mask_code.__code__


def deactivate() -> None:
    """Ends one activate(). Raises RuntimeError if there was none."""
    global _depth
    with _lock:
        if _depth == 0:
            raise RuntimeError("deactivate() without activate()")
        _depth -= 1
        if _depth == 0:
            torch.nn.functional.scaled_dot_product_attention = torchs_sdpa
            flex.flex_attention.__code__ = torchs_flex.__code__
            flex.create_block_mask.__code__ = torchs_create_block_mask.__code__


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """activate() for the block of a `with`.

    >>> import torch, heddle.torch
    >>> q = torch.randn(1, 2, 4, 8)
    >>> with heddle.torch.enabled():
    ...     torch.nn.functional.scaled_dot_product_attention(q, q, q).shape
    torch.Size([1, 2, 4, 8])
    """
    activate()
    try:
        yield
    finally:
        deactivate()
