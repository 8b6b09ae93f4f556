"""The operator heddle::forward of torch.library: what torch.compile, torch.export, fake tensors and transforms see.

Mods cross as text, so that a graph with the operator can be saved. Captures, options and block lists cross as tensors,
numbers as arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

import heddle

from ._run import (
    PLAIN, Call, attend, empty_lse, empty_out, is_plain, refuse_tangents, type_of,
)

# What a Call holds.
OPERANDS = (
    "str score, str mask, str weight, str[] capture_names, Tensor[] captures, str[] option_names, Tensor[] options, "
    "str[] int_names, SymInt[] ints, str[] float_names, float[] floats, str[] bool_names, bool[] bools, float? scale, "
    "SymInt? max_q_len, SymInt? max_kv_len, Tensor[] lists, SymInt[] list_sizes, int lse_words, bool clamps")
SCHEMA = f"forward(Tensor query, Tensor key, Tensor value, {OPERANDS}) -> (Tensor, Tensor, Tensor)"
_library = torch.library.Library("heddle", "DEF")  # type: ignore[no-untyped-call]
_library.define(SCHEMA)  # type: ignore[no-untyped-call]

Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # out, lse, lse_rest; without elements where there is none


def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Result:
    query, key, value = bare((query, key, value))
    if not is_plain(query, key, value):  # attend() would call the operator again
        raise NotImplementedError("heddle::forward runs inside of a mode or a transform that does not handle it")
    call = call_of(query, *rest)
    call.lse_rest = empty_lse(query) if rest[-2] > 1 else None
    with torch.no_grad():
        out, lse = attend(query, key, value, call)
    return out, or_empty(query, lse), or_empty(query, call.lse_rest)


def or_empty(query: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
    return query.new_empty((0,)) if x is None else x


def call_of(
    query: torch.Tensor, score: str, mask: str, weight: str, capture_names: Sequence[str],
    captures: Sequence[torch.Tensor], option_names: Sequence[str], options: Sequence[torch.Tensor],
    int_names: Sequence[str], ints: Sequence[int], float_names: Sequence[str], floats: Sequence[float],
    bool_names: Sequence[str], bools: Sequence[bool], scale: float | None, max_q_len: int | None,
    max_kv_len: int | None, lists: Sequence[torch.Tensor], list_sizes: Sequence[int], lse_words: int, clamps: bool,
) -> Call:
    """From the operands."""
    captures, options, lists = bare(captures), bare(options), bare(lists)
    call = Call(scale=scale, with_lse=lse_words > 0)
    call.captures = dict(zip(capture_names, captures))
    call.params = {**dict(zip(int_names, ints)), **dict(zip(float_names, floats)), **dict(zip(bool_names, bools))}
    call.tensors = dict(zip(option_names, options))
    call.max_q_len, call.max_kv_len, call.clamps = max_q_len, max_kv_len, clamps
    call.score, call.mask, call.weight = (text or None for text in (score, mask, weight))
    if lists:
        call.lists = mask_of_lists(lists, list_sizes, query, call.expression(mask) if mask else None)
    return call


def bare(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without their subclasses. Those with a __torch_dispatch__ do not come here."""
    with torch._C.DisableTorchFunctionSubclass():
        return [x if type(x) in PLAIN else x.as_subclass(torch.Tensor) for x in tensors]


def fake_forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Result:
    lse_words = rest[-2]
    lse, lse_rest = (empty_lse(query) if lse_words > least else None for least in (0, 1))
    return empty_out(query, value.shape[3]), or_empty(query, lse), or_empty(query, lse_rest)


for _key in ("CPU", "CUDA"):
    _library.impl("forward", forward, _key)  # type: ignore[no-untyped-call]
torch.library.register_fake("heddle::forward", fake_forward, lib=_library)


def mask_of_lists(
    lists: Sequence[torch.Tensor], sizes: Sequence[int], query: torch.Tensor, mask: Any
) -> heddle.BlockMask:
    """Copies the lists to the CPU, in each call: on a GPU it waits. (Eager calls copy once for a block mask.)"""
    on_cpu = [x.detach().resolve_neg().cpu().to(torch.int32).contiguous().numpy() for x in lists]
    q_len, kv_len, q_block, kv_block = sizes
    return heddle.BlockMask.from_lists(
        *on_cpu, q_len=q_len, kv_len=kv_len, batch=query.shape[0], heads=query.shape[1], block=(q_block, kv_block),
        mask_mod=mask)


def operands(call: Call, lse_words: int, lists: Sequence[torch.Tensor] = (),
             sizes: Sequence[int] = ()) -> tuple[Any, ...]:
    """The operator's arguments after query, key and value. `lse_words`: 0 for neither lse nor lse_rest, 1 for lse, 2
    for both."""
    kinds: dict[str, tuple[list[str], list[Any]]] = {"i32": ([], []), "f32": ([], []), "bool": ([], [])}
    for name, number in call.params.items():
        names, numbers = kinds[type_of(number)]
        names.append(name)
        numbers.append(number)
    texts = ["" if mod is None else str(mod) for mod in (call.score, call.mask, call.weight)]
    return (*texts, list(call.captures), list(call.captures.values()), list(call.tensors), list(call.tensors.values()),
            *kinds["i32"], *kinds["f32"], *kinds["bool"], call.scale, call.max_q_len, call.max_kv_len, list(lists),
            list(sizes), lse_words, call.clamps)


def traced_attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call, out: torch.Tensor | None,
    lse: torch.Tensor | None, lists: Sequence[torch.Tensor] = (), sizes: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The operator on tensors that are traced or transformed."""
    tensors = query, key, value, *call.captures.values(), *call.tensors.values()
    refuse_tangents(*tensors)
    if not lists:
        lists, sizes = call.listed(query.device)
    lse_words = 2 if may_have_backward(tensors) else int(call.with_lse)
    result, made_lse, _ = call_forward(query, key, value, *operands(call, lse_words, lists, sizes))
    if out is not None:
        out.copy_(result)
        result = out
    if lse is not None:
        lse.copy_(made_lse)
        made_lse = lse
    return result, made_lse if call.with_lse else None


def may_have_backward(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether there may be a backward. Under transforms a tensor does not say what outer ones ask of it."""
    return torch.is_grad_enabled() and (is_transformed() or any(x.requires_grad for x in tensors))


def is_transformed() -> bool:
    return not torch.compiler.is_dynamo_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def call_forward(*args: Any) -> Result:
    """The operator, also under transforms of torch.func."""
    if is_transformed():
        from ._transforms import Forward

        out, lse, lse_rest = Forward.run(*args)
        return out, lse, lse_rest
    out, lse, lse_rest = torch.ops.heddle.forward(*args)
    return out, lse, lse_rest


def mapped_forward(info: Any, in_dims: Any, *args: Any) -> tuple[Result, tuple[int | None, ...]]:
    """torch.vmap. One call for each entry, unless the mapped axis can join the batch.

    It can if only query, key and value are mapped, no mod reads b, and there are neither options nor block lists.
    """
    texts, options, lists = args[3:6], args[9], args[19]
    only_inputs = all(dim is None for dim in flat_dims(in_dims[3:]))
    if only_inputs and not options and not lists and not any(re.search(r"\bb\b", text) for text in texts):
        out, lse, lse_rest = folded_forward(info.batch_size, in_dims[:3], args)
    else:
        results = [call_forward(*(pick(x, dim, i) for x, dim in zip(args, in_dims))) for i in range(info.batch_size)]
        out, lse, lse_rest = (
            torch.stack(made) if is_made else made[0] for made, is_made in zip(zip(*results), (True, *made_of(args))))
    return (out, lse, lse_rest), (0, *(0 if is_made else None for is_made in made_of(args)))


def made_of(args: Sequence[Any]) -> tuple[bool, bool]:
    """Whether the operator makes lse, and lse_rest."""
    lse_words = args[-2]
    return lse_words > 0, lse_words > 1


def folded_forward(size: int, dims: Sequence[int | None], args: Sequence[Any]) -> Result:
    tensors = [x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
               for x, dim in zip(args[:3], dims)]
    batch = tensors[0].shape[1]  # keys and values may have batch 1
    whole = [x.expand(size, batch, *x.shape[2:]).reshape(size * batch, *x.shape[2:]) for x in tensors]
    made = call_forward(*whole, *args[3:])
    out, lse, lse_rest = (
        x.unflatten(0, (size, batch)) if is_made else x  # type: ignore[no-untyped-call]
        for x, is_made in zip(made, (True, *made_of(args))))
    return out, lse, lse_rest


def flat_dims(dims: Any) -> list[Any]:
    return [one for dim in dims for one in (flat_dims(dim) if isinstance(dim, (list, tuple)) else [dim])]


def pick(value: Any, dim: Any, i: int) -> Any:
    if isinstance(value, (list, tuple)) and isinstance(dim, (list, tuple)):
        return [pick(one, own, i) for one, own in zip(value, dim)]
    return value.select(dim, i) if isinstance(dim, int) else value


torch.library.register_vmap("heddle::forward", mapped_forward, lib=_library)

from . import _library_backward  # noqa: E402,F401  the gradients of the operator
