"""Unmodified code on heddle: torch's own functions lead to heddle's while enabled() or after activate()."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch.nn.attention.bias import CausalBias

from . import _backward_plans, _originals
from ._block_mask import create_block_mask
from ._flex import flex_attention
from ._inputs import PLAIN, has_tangent, is_plain
from ._private_names import forget_signature, has_tangents, jit_trace, register_builtin, sees_no_functions
from ._originals import block_mask_function, flex_function
from ._sdpa import scaled_dot_product_attention

_lock = threading.Lock()
_depth = 0
_log: Counter[tuple[str, str]] = Counter()
INPUTS = "query", "key", "value"
REFUSALS = TypeError, ValueError, RuntimeError  # torch may accept the call; if not, its own error is raised


class Entry(NamedTuple):
    """How many calls (`count`) of torch's `function` went to `where`: "heddle", or "torch: " and the reason."""

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


def refuses(query: Any, *others: Any, inputs: Any = ()) -> str:
    """Why heddle does not take a call; empty if it does. `inputs`: those of q, k and v that are known."""
    tensors = [x for x in (query, *others) if isinstance(x, torch.Tensor)]
    asks = not torch.compiler.is_dynamo_compiling() and is_plain(*tensors)
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if not asks and differentiated and query.device.type in _backward_plans.ASKED_ON:
        reason = _backward_plans.reason_unasked(query, *[x for x in inputs if isinstance(x, torch.Tensor)])
        if reason:
            return reason
    if not torch.compiler.is_dynamo_compiling():
        if jit_trace() is not None:
            return "torch.jit.trace records torch's own operators"
        if has_tangents() and has_tangent(*tensors):
            return "an input has a tangent of forward-mode AD"
        if any(type(x) not in PLAIN and overrides_functions(type(x)) for x in tensors):
            return "a tensor subclass"
    if any(x.is_nested or x.is_sparse for x in tensors):
        return "a nested or sparse tensor"
    if query.device.type not in ("cpu", "cuda"):
        return f"tensors on {query.device.type}"
    if not query.dtype.is_floating_point:
        return f"{query.dtype} on {query.device.type}"
    return ""


def is_left_to_torch(function: str, query: torch.Tensor) -> bool:
    """On GPUs scaled_dot_product_attention of f32 and f64 is, which heddle multiplies without tensor cores."""
    wide = query.dtype in (torch.float32, torch.float64)
    return function == "scaled_dot_product_attention" and query.device.type == "cuda" and wide


def overrides_functions(kind: type) -> bool:
    """Whether a subclass of torch.Tensor sees calls of torch's functions. CausalBias does, and heddle knows it."""
    sees = cast(Any, kind).__torch_function__
    return sees is not sees_no_functions and not issubclass(kind, CausalBias)


def routed(name: str, ours: Callable[..., Any], torchs: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    tensors = (*args, *kwargs.values())
    query = next((x for x in tensors if isinstance(x, torch.Tensor)), None)
    inputs = [*args[:3], *[kwargs[name] for name in INPUTS if name in kwargs]]
    reason = "no tensor is given" if query is None else refuses(query, *tensors, inputs=inputs)
    if not reason and query is not None and is_left_to_torch(name, query):
        reason = f"heddle multiplies {query.dtype} on {query.device.type} without tensor cores"
    if torch.compiler.is_dynamo_compiling():
        return torchs(*args, **kwargs) if reason else ours(*args, **kwargs)
    if not reason:
        try:
            result = ours(*args, **kwargs)
            _log[name, "heddle"] += 1
            return result
        except REFUSALS as error:
            reason = str(error)
    _log[name, f"torch: {reason}"] += 1
    return torchs(*args, **kwargs)


def torchs_sdpa(*args: Any, **kwargs: Any) -> Callable[..., Any]:
    """torch's function for these arguments. A CausalBias would know it by its name in torch.nn.functional, where sdpa() is."""
    mask, original = args[3] if len(args) > 3 else kwargs.get("attn_mask"), _originals.scaled_dot_product_attention
    return getattr(CausalBias, "_dispatch", original) if isinstance(mask, CausalBias) else original


def sdpa(*args: Any, **kwargs: Any) -> Any:
    torchs = torchs_sdpa(*args, **kwargs)
    if _depth == 0:  # another library kept this function
        return torchs(*args, **kwargs)
    return routed("scaled_dot_product_attention", scaled_dot_product_attention, torchs, args, kwargs)


sdpa.__doc__ = _originals.scaled_dot_product_attention.__doc__
sdpa.__name__ = _originals.scaled_dot_product_attention.__name__
register_builtin(sdpa, "aten::scaled_dot_product_attention")  # what torch.jit.script makes of it
SIGNATURES = {function: inspect.signature(function) for function in (flex_function, block_mask_function)}


def route_flex(*args: Any, **kwargs: Any) -> Any:
    return routed("flex_attention", flex_attention, _originals.flex_attention, args, kwargs)


def route_create_block_mask(*args: Any, **kwargs: Any) -> Any:
    names = [*SIGNATURES[block_mask_function].parameters]
    given = {**dict(zip(names[7:], args[7:])), **kwargs}
    given.pop("_compile", None)
    try:
        made = create_block_mask(*args[:7], **given)
        if not torch.compiler.is_dynamo_compiling():
            _log["create_block_mask", "heddle"] += 1
        return made
    except REFUSALS as error:
        reason = str(error)
    _log["create_block_mask", f"torch: {reason}"] += 1
    return _originals.create_block_mask(*args, **kwargs)


# The code that torch's function objects get. It runs with torch's globals.
def _flex_code(*args: Any, **kwargs: Any) -> Any:
    from heddle.torch import _take_over

    return _take_over.route_flex(*args, **kwargs)


def _block_mask_code(*args: Any, **kwargs: Any) -> Any:
    from heddle.torch import _take_over

    return _take_over.route_create_block_mask(*args, **kwargs)


_swaps = {flex_function: (_originals.flex_attention.__code__, _flex_code.__code__),
          block_mask_function: (_originals.create_block_mask.__code__, _block_mask_code.__code__)}
_found: Any = None  # torch.nn.functional.scaled_dot_product_attention as it was before activate()


def activate() -> None:
    """Leads torch's scaled_dot_product_attention, flex_attention and create_block_mask to heddle, in all threads.

    Calls that heddle does not support go to torch; log() says why. deactivate() ends it. activate() may be nested.

    >>> import torch, heddle.torch
    >>> heddle.torch.activate()
    >>> q = torch.randn(1, 2, 4, 8)
    >>> torch.nn.functional.scaled_dot_product_attention(q, q, q).shape
    torch.Size([1, 2, 4, 8])
    >>> heddle.torch.deactivate()
    """
    global _depth, _found
    with _lock:
        _depth += 1
        if _depth > 1:
            return
        found = torch.nn.functional.scaled_dot_product_attention
        if found is not sdpa:
            _found = found
        torch.nn.functional.scaled_dot_product_attention = sdpa
        for function, (_, ours) in _swaps.items():
            function.__code__ = ours
            forget_signature(function)
            cast(Any, function).__signature__ = SIGNATURES[function]


def deactivate() -> None:
    """Ends one activate(). What another library has put in place of torch's functions stays.

    Raises RuntimeError if there was no activate().
    """
    global _depth
    with _lock:
        if _depth == 0:
            raise RuntimeError("deactivate() without activate()")
        _depth -= 1
        if _depth == 0:
            if torch.nn.functional.scaled_dot_product_attention is sdpa:
                torch.nn.functional.scaled_dot_product_attention = _found
            for function, (torchs, ours) in _swaps.items():
                if function.__code__ is ours:
                    function.__code__ = torchs
                    forget_signature(function)
                    del cast(Any, function).__signature__


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
