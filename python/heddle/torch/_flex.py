"""flex_attention, as torch.nn.attention.flex_attention has it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from . import _dense, _nested
from ._block_lists import LARGE_BLOCK, BoundMask, lists_of
from ._block_mask import BlockMask, direct_mask, made_for, sizes_of
from ._call import Call, TracedLists
from ._dispatch import attend, has_no_width, of_no_width
from ._inputs import PLAIN, autocast, is_plain, of_one_width, refuse_others
from ._mask_mods import noop_mask
from ._mod_code import of_tensors
from ._named_tensors import names_arguments
from ._private_names import dispatch_modes, identity, is_wrapped, sliced_mask_mod
from ._recorded import attend_again
from ._results import OutAndLse, empty_lse, ordered_out
from ._tf32 import allow_tf32_for
from ._tracing.kept import Mods

KERNEL_OPTIONS = {
    "num_warps", "num_stages", "BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2", "PRESCALE_QK",
    "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "WRITE_DQ", "FORCE_USE_FLEX_ATTENTION", "USE_TMA", "kpack",
    "matrix_instr_nonkdim", "waves_per_eu", "BACKEND", "IS_DIVISIBLE", "OUTPUT_LOGSUMEXP", "OUTPUT_MAX",
}
BACKENDS = ("AUTO", "TRITON", "FLASH", "TRITON_DECODE")
MISMATCH = RuntimeError if hasattr(flex, "_validate_block_mask_shape") else ValueError  # as torch raises it
_warned: set[str] = set()


def warn_once(key: str, message: str, category: type[Warning] = UserWarning) -> None:
    """Eager calls alone warn: Dynamo cannot trace a warning."""
    if not torch.compiler.is_dynamo_compiling() and key not in _warned:
        _warned.add(key)
        warnings.warn(message, category, stacklevel=3)


def check_kernel_options(options: dict[str, Any]) -> None:
    """Accepts what torch accepts; none of it says anything about these kernels."""
    if "BACKEND" in options and options.get("FORCE_USE_FLEX_ATTENTION", False):
        raise RuntimeError("BACKEND cannot be combined with legacy FORCE_USE_FLEX_ATTENTION.")
    if options.get("BACKEND", "AUTO") not in BACKENDS:
        raise ValueError(f"Invalid BACKEND value '{options['BACKEND']}'. Must be one of {BACKENDS}")
    for name in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX"):
        if name in options:
            raise AssertionError(f"{name} must not be in kernel_options")
    for name in options:
        if not isinstance(name, str):
            raise TypeError(f"kernel_options has the name {name!r}; names of torch's FlexKernelOptions are accepted")
        bare = name[4:] if name.startswith(("fwd_", "bwd_")) else name
        if bare not in KERNEL_OPTIONS:
            warn_once(f"kernel_options {name}", f"kernel_options has '{name}', which no kernel reads")


def check_inputs(call: Call, score_mod: Any, block_mask: Any, enable_gqa: bool) -> None:
    """Raises what torch's flex_attention raises."""
    query, key, value = call.query, call.key, call.value
    if score_mod is not None and not callable(score_mod):
        raise TypeError(f"score_mod is {type(score_mod).__name__}; a function (score, b, h, q_idx, kv_idx) and None are "
                        "accepted")
    if block_mask is not None and not isinstance(block_mask, flex.BlockMask):
        raise TypeError(f"block_mask is {type(block_mask).__name__}; what create_block_mask makes, heddle's or torch's, "
                        "and None are accepted")
    if not (query.device == key.device == value.device):
        raise ValueError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device}, key.device: {key.device}, and value.device: {value.device} instead.")
    if not (query.dim() == key.dim() == value.dim() == 4):
        raise NotImplementedError(
            f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} axes; 4D tensors are accepted")
    if value.shape[0] not in (query.shape[0], key.shape[0]):
        raise ValueError(f"value has batch size {value.shape[0]} and key {key.shape[0]}; equal ones are accepted")
    if query.shape[3] != key.shape[3]:
        raise ValueError("Expect query and key/value to have the same embedding dimension but got "
                         f"E={query.shape[3]} and E={key.shape[3]}.")
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and not enable_gqa:
        raise ValueError(f"Expect query and key/value to have the same number of heads but got Hq={heads} and "
                         f"Hkv={kv_heads}. Try setting enable_gqa=True for GQA.")
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise ValueError("Expect number of query heads to be a multiple of kv heads for GQA but got "
                         f"Hq={heads} and Hkv={kv_heads}.")


def check_block_mask(call: Call, mask: Any) -> None:
    """Raises what torch's flex_attention raises for a block mask that does not fit."""
    query, key = call.query, call.key
    if getattr(mask, "mask_mod", None) is sliced_mask_mod:
        raise RuntimeError("Cannot use mask_mod from a sliced BlockMask")
    shape = mask.shape
    q_len, kv_len = query.shape[2], key.shape[2]
    if (q_len, kv_len) != tuple(shape[-2:]):
        advice = "you likely need to create a new block mask." if q_len > shape[-2] or kv_len > shape[-1] else (
            "you can either 1. create a new block mask with the correct length, or 2. 'adjust' the existing block mask "
            "to the correct length by calling block_mask._adjust(q_len, kv_len).")
        raise MISMATCH(f"block_mask was created for block_mask.shape={tuple(shape)} but got q_len={q_len} and "
                       f"kv_len={kv_len}: {advice}")
    for axis, name, extent in ((0, "batch size", query.shape[0]), (1, "number of heads", query.shape[1])):
        if len(shape) > 2 and shape[axis] != 1 and shape[axis] != extent:  # `in` finds no extent that Dynamo keeps open
            raise ValueError(f"block_mask of shape {tuple(shape)} has {name} {shape[axis]}; 1 or the query's {extent} "
                             "is accepted")
    device = mask.device if isinstance(mask, BlockMask) else mask.kv_num_blocks.device
    if query.device != device:
        raise RuntimeError(f"Expect q/k/v and block_mask to be on the same device but got {query.device} and {device}.")


def is_no_mask(mask: Any) -> bool:
    """torch's stand-in for no mask."""
    return mask is None or tuple(mask.BLOCK_SIZE) == (LARGE_BLOCK, LARGE_BLOCK) and mask.mask_mod in (
        noop_mask, flex.noop_mask)


def set_score(call: Call, score_mod: Callable[..., torch.Tensor]) -> None:
    mods = Mods(call.query.device)
    try:
        call.score = mods.score(score_mod)
    except NotImplementedError:
        if not _dense.is_allowed():
            raise
        call.score = "score + dense_bias[b, h, q_idx, kv_idx]"
        call.captures["dense_bias"] = _dense.bias(score_mod, call.query, call.key)
        return
    call.captures, call.params, call.clamps = mods.captures, mods.params, bool(mods.captures)


def set_mask(call: Call, mask: Any) -> None:
    """The block mask's function, and its lists where they say more."""
    lazy = mask._lazy if isinstance(mask, BlockMask) else None
    if lazy is not None:
        bound = lazy.mask
    elif are_traced(call.query, lists_of(mask)):
        call.lists, bound = TracedLists(lists_of(mask), sizes_of(mask)), BoundMask(mask.mask_mod, call.query.device)
    else:
        call.lists, bound = made_for(mask, call.query.shape[0], call.query.shape[1])
    call.mask = bound.expr
    call.captures.update(bound.captures)
    call.params.update(bound.params)
    call.version = bound.version


def are_traced(query: torch.Tensor, lists: list[torch.Tensor]) -> bool:
    """Whether torch traces a call with these lists (torch.export(strict=False), make_fx, a fake mode), or a transform of
    torch.func maps them."""
    return dispatch_modes() > 0 or any(type(x) not in PLAIN for x in (query, *lists)) or any(map(is_wrapped, lists))


@names_arguments
def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Callable[..., torch.Tensor] | None = None,
    block_mask: Any = None, scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None, *, return_aux: AuxRequest | None = None,
) -> Any:
    """Attention with your own score function and block mask, as torch's flex_attention, with its arguments.

    - query [B, Hq, L, E], key [B, Hkv, S, E] and value [B, Hkv, S, Ev] have floating types. If the query's type would
      round numbers of key or value, the call is computed in f32; out has the query's type. Hkv is Hq, or with
      enable_gqa a divisor of Hq. With a block mask key and value may have batch 1.
    - score_mod(score, b, h, q_idx, kv_idx) is a torch function, or a ready-made mod of heddle.mods: score is f32, the
      indices are i32.
    - block_mask comes from create_block_mask, heddle's or torch's. scale: by default 1 / sqrt(E). kernel_options of
      torch are accepted and have no effect.
    - All three may be nested tensors [B, H, j, E] of torch's jagged layout: b is the sequence, and indices start at 0
      in each. Make their block_mask with heddle's create_block_mask, for the longest lengths.
    - Tensors that the functions read may have any type and strides. A read outside of a tensor gets the nearest
      element.

    Returns out [B, Hq, L, Ev], its axes in the order of the query's strides. With return_lse it returns (out, lse),
    with return_aux (out, AuxOutput); lse and max_scores are [B, Hq, L], f64 for inputs f64, else f32. max_scores are
    the rows' largest scores after score_mod: -inf if no key attends, NaN if a score is NaN or +inf. They have no
    gradient.

    Raises:

    - ValueError, RuntimeError: as torch, for shapes, devices and options that torch refuses.
    - TypeError: for a function whose Python code needs the value of a score or an index.
    - NotImplementedError: for an operation of a function that has no expression; the message names it and the line. For
      max_scores under torch.compile(fullgraph=True) and under torch.func's transforms.

    Autograd computes gradients of query, key, value, lse, and of the tensors that score_mod reads.

    >>> import torch, heddle.torch
    >>> q = torch.randn(1, 2, 16, 8)
    >>> heddle.torch.flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score - (q_idx - kv_idx).abs()).shape
    torch.Size([1, 2, 16, 8])
    """
    if return_lse:
        if return_aux is not None:
            raise ValueError("Cannot specify both return_lse and return_aux. return_lse is deprecated, please use "
                             "return_aux=AuxRequest(lse=True) instead.")
        warn_once("return_lse", "return_lse is deprecated. Please use return_aux=AuxRequest(lse=True) instead.",
                  FutureWarning)
    with_max_scores = return_aux is not None and return_aux.max_scores
    with_lse = return_lse or return_aux is not None and return_aux.lse
    try:
        settings: dict[str, Any] = {"scale": scale, "allow_tf32": allow_tf32_for(query)}
    except AttributeError:
        refuse_others(query=query)
        raise
    made = max_scores = None
    if kernel_options:
        check_kernel_options(kernel_options)
    if not with_max_scores and not torch.compiler.is_dynamo_compiling():
        made = repeated(query, key, value, score_mod, block_mask, settings, enable_gqa, with_lse)
    if made is None:
        refuse_others(query=query, key=key, value=value)
        query, key, value = autocast(query, key, value)
        if query.is_nested or key.is_nested or value.is_nested:
            if with_max_scores:
                raise NotImplementedError("max_scores of nested tensors are not computed; lse is")
            made = of_nested(query, key, value, score_mod, block_mask, scale, enable_gqa, with_lse)
    if made is None:
        call = Call(query, key, value, **settings, with_lse=with_lse)
        if with_max_scores:
            refuse_traced_maxima()
            check_inputs(call, score_mod, block_mask, enable_gqa)
            call.max_scores = max_scores = empty_lse(query)
        made = checked(call, score_mod, block_mask, enable_gqa)
    if return_aux is not None:
        return made[0], AuxOutput(lse=made[1] if with_lse else None, max_scores=max_scores)
    return made if return_lse else made[0]


def repeated(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any, block_mask: Any,
    settings: dict[str, Any], enable_gqa: bool, with_lse: bool,
) -> OutAndLse | None:
    """The call without checked(), if it was made before and nothing stands against that."""
    mask = None
    if block_mask is not None:
        mask = direct_mask(block_mask)
        if mask is None:
            return None
    if score_mod is identity:
        score_mod = None
    return attend_again(query, key, value, score_mod, mask, settings, enable_gqa, with_lse, True)


def refuse_traced_maxima() -> None:
    if torch.compiler.is_dynamo_compiling():
        raise NotImplementedError("max_scores are computed by eager calls alone, and torch.compile traces this one; "
                                  "lse is computed there")


def checked(
    call: Call, score_mod: Callable[..., torch.Tensor] | None, block_mask: Any, enable_gqa: bool
) -> OutAndLse:
    """out, and lse if the call has it. Raises what flex_attention raises. Fills the call."""
    check_inputs(call, score_mod, block_mask, enable_gqa)
    wide = of_one_width(call.query, call.key, call.value)
    if wide is not None:
        dtype = call.query.dtype
        call.query, call.key, call.value = wide
        out, lse = checked(call, score_mod, block_mask, enable_gqa)
        return out.to(dtype), lse
    if is_no_mask(block_mask):
        block_mask = None
    query, key, value = call.query, call.key, call.value
    if query.shape[0] != key.shape[0] and (key.shape[0] != 1 or block_mask is None):
        raise ValueError("Expect query and key/value to have the same batch size, or key and value of batch 1 and a "
                         f"block_mask, but got Bq={query.shape[0]} and Bkv={key.shape[0]}.")
    if call.max_scores is not None:
        refuse_traced_maxima()  # here too: without fullgraph Dynamo runs the caller's frame and traces this one
    if torch.compiler.is_dynamo_compiling():
        return compiled(call, score_mod, block_mask)
    call.scale = None if call.scale is None else float(call.scale)
    if score_mod is not None and score_mod is not identity:
        set_score(call, score_mod)
    if block_mask is not None:
        check_block_mask(call, block_mask)
        set_mask(call, block_mask)
        call.clamps = call.clamps or bool(call.captures)
    if type(query) in PLAIN and 0 in query.stride() and is_plain(query, key, value):
        call.out = ordered_out(query, value.shape[3])
    return attend(call)


def of_nested(
    query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: float | None, enable_gqa: bool,
    with_lse: bool,
) -> OutAndLse:
    """The results of jagged tensors: b counts sequences, q_idx and kv_idx begin at 0 in each."""
    _nested.refuse_mixed(query, key, value)
    is_traced = torch.compiler.is_dynamo_compiling()
    call = Call(query, key, value)
    check_inputs(call, score_mod, block_mask, enable_gqa)
    call = _nested.packed_call(query, key, value, scale)
    call.with_lse = with_lse
    if is_traced:
        if is_no_mask(block_mask):
            block_mask = None
        else:
            check_nested_mask(query, key, block_mask)
        out, lse = traced(call, score_mod, block_mask)
        rows = _nested.with_lengths_of(query, out.transpose(1, 2).squeeze(0))
        return rows, None if not with_lse or lse is None else _nested.with_lengths_of(query, lse.squeeze(0).transpose(0, 1))
    if score_mod is not None and score_mod is not identity:
        set_score(call, score_mod)
    if not is_no_mask(block_mask):
        check_nested_mask(query, key, block_mask)
        set_mask(call, block_mask)
        call.clamps = call.clamps or bool(call.captures)
    made = _nested.attend_nested(call, query, value)
    return made if with_lse else (made, None)


def check_nested_mask(query: Any, key: Any, mask: Any) -> None:
    """Raises ValueError for a block mask of lists, and for one that is too small."""
    is_traced = torch.compiler.is_dynamo_compiling()  # Dynamo takes the function of a mask whose lists were read, too
    if not isinstance(mask, BlockMask) or (mask._made_by if is_traced else mask._lazy) is None:
        raise ValueError("block_mask is made of lists, and query is a nested tensor; one of heddle.torch.create_block_mask "
                         "is accepted there")
    longest = _nested.longest(query), _nested.longest(key)
    batch, heads, q_len, kv_len = mask.shape
    others = [have for have, wanted in ((batch, query.shape[0]), (heads, query.shape[1])) if have != 1 and have != wanted]
    if others or q_len < longest[0] or kv_len < longest[1]:
        raise ValueError(f"block_mask has shape {tuple(mask.shape)}; 1 or {query.shape[0]} sequences, 1 or "
                         f"{query.shape[1]} heads, and lengths of {longest} and more are accepted")


def compiled(call: Call, score_mod: Any, block_mask: Any) -> OutAndLse:
    """The call as Dynamo traces it. Without score_mod the call may have a score and a weight as text."""
    if has_no_width(call):
        return of_no_width(call, lambda wide: compiled(wide, score_mod, block_mask))
    if block_mask is not None:
        check_block_mask(call, block_mask)
    return traced(call, score_mod, block_mask)


def traced(call: Call, score_mod: Any, block_mask: Any) -> OutAndLse:
    """compiled() of a block mask that was checked."""
    from ._higher_order import flex_attention as operator

    score_mod = of_tensors(score_mod)
    options = {"with_lse": call.with_lse, "with_score": score_mod is not None, "with_mask": block_mask is not None,
               "score": call.score, "weight": call.weight, "captures": call.captures, "params": call.params,
               "tensors": call.options, "longest": (call.max_q_len, call.max_kv_len)}
    if block_mask is None:
        parts: tuple[Any, ...] = (0, 0, 0, 0, noop_mask)
    elif isinstance(block_mask, BlockMask) and block_mask._made_by is not None:
        parts = (0, 0, 0, 0, of_tensors(block_mask.mask_mod))
    else:
        parts = (*block_mask.seq_lengths, *block_mask.BLOCK_SIZE, block_mask.kv_num_blocks, block_mask.kv_indices,
                 block_mask.full_kv_num_blocks, block_mask.full_kv_indices, block_mask.mask_mod)
    made: tuple[torch.Tensor, torch.Tensor] = operator(
        call.query, call.key, call.value, identity if score_mod is None else score_mod, parts, call.scale,
        options)
    return made
