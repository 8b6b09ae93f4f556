"""One attention of torch tensors.

Eager calls go straight to the library. Where torch traces, transforms or fakes tensors, calls go through the operator
heddle::forward (_library.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import _core
from .._trace import dtype_name
from . import _forms

PLAIN = (torch.Tensor, torch.nn.Parameter)
Tensors = dict[str, torch.Tensor]
Numbers = dict[str, float | int | bool]


@lru_cache(maxsize=512)
def parsed(text: str, captures: tuple[tuple[str, tuple[str, int]], ...], params: tuple[tuple[str, str], ...]) -> Any:
    return _core.parse(text, dict(captures), dict(params))


def type_of(number: Any) -> str:
    """The type of a param of this value."""
    if isinstance(number, bool):
        return "bool"
    return "f32" if isinstance(number, (float, torch.SymFloat)) else "i32"


class Call:
    """An attention without its query, key and value. `tensors` are options by their names in heddle.attention."""

    __slots__ = ("score", "mask", "weight", "captures", "params", "tensors", "scale", "max_q_len", "max_kv_len",
                 "lists", "version", "with_lse", "clamps", "max_scores", "lse_rest")

    def __init__(self, *, scale: float | None = None, with_lse: bool = False) -> None:
        self.score: Any = None  # mods are expressions or text
        self.mask: Any = None
        self.weight: Any = None
        self.captures: Tensors = {}
        self.params: Numbers = {}
        self.tensors: Tensors = {}
        self.scale = scale
        self.max_q_len: int | None = None
        self.max_kv_len: int | None = None
        self.lists: Any = None  # a heddle.BlockMask of lists
        self.version = 0  # changes with the content of tensors on a GPU that the mask reads
        self.with_lse = with_lse
        self.clamps = False  # whether reads outside of captures get the nearest element
        self.max_scores: torch.Tensor | None = None  # where they go, if they are asked for
        self.lse_rest: torch.Tensor | None = None  # likewise, what lse's rounding leaves out

    def set_dropout(self, p: float, device: torch.device) -> None:
        """Weights are 0 with probability p. The seed is a tensor on the device: another one at each replay of a graph."""
        if p == 1.0:  # every weight is dropped, and 1 / (1 - p) is no number
            self.weight = "0.0"
            return
        self.weight = _forms.DROPOUT
        self.params["dropout_p"] = float(p)
        self.captures["dropout_seed"] = torch.randint(0, 2**31 - 1, (), device=device)

    def expression(self, mod: Any) -> Any:
        if not isinstance(mod, str):
            return mod
        captures = tuple([(name, (dtype_name(x), x.dim())) for name, x in self.captures.items()])
        return parsed(mod, captures, tuple([(name, type_of(number)) for name, number in self.params.items()]))

    def listed(self, device: torch.device) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        """The block lists, and their sizes: queries and keys, of the whole and of a block."""
        if self.lists is None:
            return [], ()
        return [torch.from_numpy(x).to(device) for x in self.lists.to_lists()], (
            *self.lists.shape[-2:], *self.lists.block)

    def arguments(self, device: torch.device) -> Any:
        made = _core.Arguments()
        if self.score is not None:
            made.score_mod = self.expression(self.score)
        if self.mask is not None:
            made.mask_mod = self.expression(self.mask)
        if self.weight is not None:
            made.weight_mod = self.expression(self.weight)
        if self.captures:
            made.captures = self.captures
        if self.params:
            made.params = self.params
        if self.scale is not None:
            made.scale = self.scale
        for name, tensor in self.tensors.items():
            setattr(made, name, tensor)
        if self.max_q_len is not None:
            made.max_q_len = self.max_q_len
        if self.max_kv_len is not None:
            made.max_kv_len = self.max_kv_len
        if self.lists is not None:
            made.block_mask = self.lists._mask
        if self.clamps:
            made.clamp_reads = True
        if device.type == "cuda":
            made.stream = torch._C._cuda_getCurrentRawStream(device.index)
            made.mask_version = self.version
        return made


def is_plain(*tensors: torch.Tensor) -> bool:
    """Whether these are tensors with memory, and nobody watches what happens to them."""
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(type(x) in PLAIN for x in tensors)


def out_dtype(query: torch.Tensor) -> torch.dtype:
    return torch.bfloat16 if query.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else query.dtype


def empty_out(query: torch.Tensor, last: int) -> torch.Tensor:
    """[B, Hq, L, last], its axes in the order of the query's strides, the last one contiguous."""
    if last == query.shape[3] and query.stride(3) == 1:
        return torch.empty_like(query, dtype=out_dtype(query))
    return ordered_out(query, last)


def ordered_out(query: torch.Tensor, last: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """empty_out() where expanded axes of the query, whose stride is 0, come last: flex_attention's result."""
    shape, strides, step, given = (*query.shape[:3], last), [0, 0, 0, 1], last, query.stride()
    for axis in reversed(sorted(range(3), key=lambda axis: -given[axis])):
        strides[axis] = step
        step = step * shape[axis]
    return query.new_empty_strided(shape, strides, dtype=out_dtype(query) if dtype is None else dtype)


def empty_lse(query: torch.Tensor) -> torch.Tensor:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, heads, length, _ = query.shape
    return torch.empty(batch, heads, length, dtype=dtype, device=query.device)


def has_tangent(*tensors: torch.Tensor) -> bool:
    """Whether forward-mode AD differentiates by one of these."""
    return torch._C._is_fwd_grad_enabled() and any(
        x.is_floating_point() and forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]
        for x in tensors)


def refuse_tangents(*tensors: torch.Tensor) -> None:
    """Raises NotImplementedError if an input has a tangent: better than a derivative that is missing."""
    if not torch.compiler.is_dynamo_compiling() and forward_ad._current_level >= 0 and has_tangent(*tensors):
        raise NotImplementedError(
            "heddle.torch has no forward-mode derivative, and an input has a tangent: call torch's own attention, or "
            "take the primal of the input")


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call, out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Runs on torch's current stream and waits for nothing. Allocates out and lse by torch where they are not given."""
    if out is not None and not torch.compiler.is_dynamo_compiling() and out.is_neg():
        made = attend(query, key, value, call, None, lse)
        return out.copy_(made[0]), made[1]
    if torch.compiler.is_dynamo_compiling() or not is_plain(query, key, value):  # subclasses: _library.bare()
        from ._library import traced_attend

        if call.max_scores is not None:
            raise NotImplementedError("max_scores are computed by eager calls alone, outside of torch.compile and of "
                                      "torch.func's transforms; lse has both")
        return traced_attend(query, key, value, call, out, lse)
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        tensors = query, key, value, *call.captures.values(), *call.tensors.values()
        refuse_tangents(*tensors)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            from ._gradients import attend_with_gradients

            return attend_with_gradients(query, key, value, call, out)
    if out is None:
        out = empty_out(query, value.shape[3])
    if lse is None and call.with_lse:
        lse = empty_lse(query)
    arguments = call.arguments(query.device)
    if query.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        run_in_graph(query, key, value, out, lse, arguments, call)
        return out, lse
    try:
        _core.attention_into(query, key, value, out, lse, arguments, call.max_scores, call.lse_rest)
    except ValueError:
        copies = suited(query, key, value)
        if copies is None:
            raise
        query, key, value = copies
        _core.attention_into(query, key, value, out, lse, arguments, call.max_scores, call.lse_rest)
    return out, lse


_in_graphs: list[Any] = []  # plans that graphs run; the graphs do not say when they end


def run_in_graph(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None,
    arguments: Any, call: Call,
) -> None:
    """Runs in a stream that a CUDA graph captures. Needs an earlier call with the same shapes: a capture cannot plan.

    Takes that call's plan, which it keeps for good, and a workspace from torch's allocator.
    """
    plan = _core.KeptPlan(query, key, value, out, lse, arguments, call.max_scores, call.lse_rest)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=query.device)
    plan.run(query, key, value, out, lse, arguments, workspace.data_ptr(), call.max_scores, call.lse_rest)
    _in_graphs.append(plan)


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors in the type of torch's autocast if it is on. f64 and integers stay what they are."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def suited(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """The tensors as the library takes them: last stride 1, key and value of the query's type. None if they are so."""
    def suits(x: torch.Tensor) -> torch.Tensor:
        x = x.to(query.dtype)
        return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()

    copies = suits(query), suits(key), suits(value)
    return None if all(x is y for x, y in zip(copies, (query, key, value))) else copies
