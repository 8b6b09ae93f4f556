"""Errors of calls on torch's tensors that name the argument, where torch's dispatcher or Python would not."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .._named_arguments import FITS, is_integer, is_number, misfit
from .._options import refuse_type
from ._inputs import PLAIN, is_plain

Function = TypeVar("Function", bound=Callable[..., Any])
LEADING = {"q": "query", "k": "key", "v": "value", "o": "out"}  # the library's names of inputs and of the result
LETTER = re.compile(r"(?<!-)\b[qkvo]\b(?!\^)")


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.layout == torch.strided or value.is_nested)


FITS["torch.Tensor"] = is_tensor, "a tensor of torch.strided"
FITS["Descale"] = lambda value: value is None or is_tensor(value), "a tensor of torch.strided"
FITS["Scale"] = (
    lambda value: value is None or (
        value.numel() == 1 if is_tensor(value) else is_number(value) and abs(value) < 2**63), "a float or a tensor of one")
FITS["torch.dtype"] = lambda value: isinstance(value, torch.dtype), "a torch.dtype"
FITS["AuxRequest"] = lambda value: type(value).__name__ == "AuxRequest", "an AuxRequest"
FITS["Rotary"] = lambda value: type(value).__name__ == "Rotary", "a Rotary"
FITS["MaskMod"] = FITS["Callable"]


def names_arguments(function: Function) -> Function:
    """The function, which raises TypeError with the argument's name if it fails and an argument is of another type than
    its annotation says. Dynamo sees the function itself."""
    return named_as()(function)


def named_as(**names: str) -> Callable[[Function], Function]:
    """names_arguments, for a function whose arguments have these names in the library's errors."""
    def decorate(function: Function) -> Function:
        order = tuple(inspect.signature(function).parameters)
        leading = {library: own for library, own in LEADING.items() if own in order}

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                return function(*given, **named)
            try:
                return function(*given, **named)
            except (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, LookupError) as error:
                refuse(error, misfit(function, given, named), {**dict(zip(order, given)), **named}, names, leading)
                raise

        return call  # type: ignore[return-value]

    return decorate


def refuse(
    error: Exception, wrong: tuple[str, Any, str] | None, given: dict[str, Any], names: dict[str, str],
    leading: dict[str, str],
) -> None:
    """Raises TypeError for an argument that is wrong, unless the error names it, and the error with the names of this
    function: `names` for the library's wherever they stand, `leading` for those with which a sentence of it begins."""
    text = str(error)
    if isinstance(error, RuntimeError) and "setStorage" in text:
        refuse_freed(given)
    if isinstance(error, NotImplementedError) and "sharding strategy" in text:
        refuse_sharded(given)
    if isinstance(error, TypeError) and "incompatible function arguments" in text:
        refuse_elsewhere(given)
    if wrong is not None and ("incompatible function arguments" in text or not re.search(rf"\b{wrong[0]}\b", text)):
        refuse_type(*wrong)
    own = re.sub(rf"\b({'|'.join(names)})\b", lambda said: names[said[1]], text) if names else text
    if type(error) not in (ValueError, NotImplementedError, RuntimeError):
        return
    if is_of_inputs(own):
        own = LETTER.sub(lambda said: leading.get(said[0], said[0]), own)
    if own != text:
        raise type(error)(own) from None


def refuse_freed(arguments: dict[str, Any]) -> None:
    """Raises ValueError that names a tensor whose memory was given back, if there is one."""
    for name, x in arguments.items():
        if type(x) in PLAIN and x.layout == torch.strided and x.numel() and not x.untyped_storage().nbytes():
            raise ValueError(f"{name} is {x.dtype} {list(x.shape)} but its data is null: its storage was resized to nothing")


def refuse_elsewhere(arguments: dict[str, Any]) -> None:
    """Raises RuntimeError that names a tensor without memory that the library can reach, beside one that has it."""
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    reached = [x for x in tensors.values() if x.layout == torch.strided and x.device.type in ("cpu", "cuda")]
    for name, x in tensors.items():
        if reached and not x.is_nested and (x.layout != torch.strided or x.device.type not in ("cpu", "cuda")):
            raise RuntimeError(f"{name} is a tensor of {x.layout} on {x.device}; tensors of torch.strided on "
                               f"{reached[0].device} are accepted") from None


def refuse_sharded(arguments: dict[str, Any]) -> None:
    """Raises NotImplementedError that names a DTensor, if there is one."""
    for name, x in arguments.items():
        if hasattr(x, "placements") and hasattr(x, "to_local"):
            raise NotImplementedError(
                f"{name} is a DTensor {list(x.placements)}; heddle computes on each rank's own tensors (to_local(), or the call in "
                "torch.distributed.tensor.experimental.local_map), and sequences over ranks by heddle.torch.context_parallel") from None


def is_of_inputs(text: str) -> bool:
    """Whether a sentence of the library is about q, k, v or o."""
    return re.match(r"[qkvo](, [kv])* (is|are|has|have|overlaps) ", text) is not None


def require_axes(count: int, **tensors: Any) -> None:
    """Raises ValueError for a tensor that has not so many axes."""
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor) and x.dim() != count:
            raise ValueError(f"{name} has shape {list(x.shape)}; {count} axes are accepted")


def require_lists(**tensors: Any) -> None:
    """Raises ValueError for a tensor that is no list of integers."""
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor) and (x.dim() != 1 or x.dtype not in (torch.int32, torch.int64)):
            raise ValueError(f"{name} is {x.dtype} {list(x.shape)}; one axis of torch.int32 or torch.int64 is accepted")


def require_counts(name: str, counts: torch.Tensor, sequences: int, most: torch.Tensor | None = None) -> None:
    """Raises ValueError for what are not integers [sequences]; for integers on the CPU that are negative, or above those
    of `most`."""
    if counts.dtype not in (torch.int32, torch.int64) or tuple(counts.shape) != (sequences,):
        raise ValueError(f"{name} is {counts.dtype} {list(counts.shape)}; torch.int32 and torch.int64 [{sequences}] are accepted")
    if not is_plain(counts, most) or counts.device.type != "cpu":
        return
    wrong = counts < 0 if most is None else (counts < 0) | (counts > most)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        above = "0 and more" if most is None else f"0 to {int(most[at])}"
        raise ValueError(f"{name}[{at}] is {int(counts[at])}; {above} are accepted")


def require_sizes(**sizes: int | None) -> None:
    """Raises ValueError for one that is negative, TypeError for a float. None is none."""
    for name, size in sizes.items():
        if isinstance(size, float):
            refuse_type(name, size, "an int")
        if size is not None and size < 0:
            raise ValueError(f"{name} is {size}; 0 and more are accepted")


def pair_of_ints(name: str, value: Any) -> tuple[Any, Any]:
    """Two sizes, as ints of Python's or of Dynamo's. Raises ValueError for what has not two elements, TypeError for elements
    that are no ints."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        kind = TypeError if not hasattr(value, "__len__") or isinstance(value, (torch.Tensor, str)) else ValueError
        raise kind(f"{name} is {value!r}; a pair of ints is accepted")
    if torch.compiler.is_dynamo_compiling() or all(type(one) in (int, torch.SymInt) for one in value):
        return value[0], value[1]
    if not all(is_integer(one) for one in value):
        raise TypeError(f"{name} is {tuple(value)!r}; a pair of ints is accepted")
    return int(operator.index(value[0])), int(operator.index(value[1]))
