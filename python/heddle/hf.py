"""heddle in Hugging Face's transformers 5: `heddle.hf.register()`, then `attn_implementation="heddle"`, and
`"paged|heddle"` for continuous batching (`generate_batch`), which transformers makes of it itself.

Masks become block masks of heddle.torch: causal, sliding, chunked and packed attention skip the blocks that they mask.
Models that change their masks get dense ones. A model that computes its attention itself is refused when it loads.
Sinks, softcap, position biases, dropout, static caches and dynamic caches go to the kernel as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask as TorchBlockMask

from .torch import _few_queries, _forms, _hf_models, serving
from .torch._block_mask import create_block_mask
from .torch._call import Call
from .torch._dispatch import attend
from .torch._flex import check_block_mask, compiled, set_mask
from .torch._sdpa import check_extents

__all__ = ["attention", "mask", "paged_attention", "register"]

NAME = "heddle"


def register(name: str = NAME) -> None:
    """Makes `attn_implementation=name` and `paged|name` known to transformers.

    From then on loading a model with this name raises ValueError if the model computes its attention itself. Raises
    ImportError without transformers 5.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionInterface.register(f"paged|{name}", paged_attention)
    AttentionMaskInterface.register(name, mask)
    _hf_models.check_models(name)


def mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: Any = 0, mask_function: Any = None,
    attention_mask: torch.Tensor | None = None, allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False, local_size: int | None = None, device: Any = "cpu", config: Any = None,
    **options: Any,
) -> Any:
    """The mask of one forward pass: a heddle.torch.BlockMask over scores [batch_size, 1, q_length, kv_length], with the
    arguments of transformers' mask functions, which calls it.

    mask_function(b, h, q_idx, kv_idx) is the mask without padding, None is causal; q_offset and kv_offset are added to
    its indices. attention_mask [batch_size, kv_length] is False at padding. allow_is_causal_skip and
    allow_is_bidirectional_skip permit None as the result. local_size is a window's or a chunk's. `device` is that of
    the mask. Returns None only if nothing is masked: for all pairs of bidirectional attention, and for the last query
    of all. `config` is the model's; models that do not take block masks get the dense mask that transformers makes for
    "sdpa" or "eager".
    """
    from transformers.masking_utils import (
        add_offsets_to_mask_function, and_masks, bidirectional_mask_function, causal_mask_function,
        padding_mask_function, prepare_padding_mask)

    if mask_function is None:
        mask_function = causal_mask_function
    # A static cache counts its rows in place, before attention reads the mask.
    q_offset, kv_offset = (x.clone() if isinstance(x, torch.Tensor) else x for x in (q_offset, kv_offset))
    padding = None
    if attention_mask is not None and not sees_all_keys(attention_mask):
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is None and not (local_size is not None and kv_length >= local_size):
        sees_all = q_length == 1 and isinstance(q_offset, int) and q_offset + 1 == kv_length + kv_offset
        if allow_is_causal_skip and mask_function is causal_mask_function and sees_all:
            return None
        if allow_is_bidirectional_skip and mask_function is bidirectional_mask_function:
            return None
    if config is not None and not _hf_models.masks_of(config).blocks:
        return dense_mask(_hf_models.masks_of(config).bools, batch_size, q_length, kv_length, q_offset, kv_offset,
                          mask_function, attention_mask, device, options)
    whole = mask_function
    if padding is not None:
        whole = and_masks(whole, padding_mask_function(padding))
    if isinstance(q_offset, int) and q_offset == kv_offset == 0:
        return create_block_mask(whole, batch_size, None, q_length, kv_length, device)
    whole = add_offsets_to_mask_function(whole, q_offset, kv_offset)
    if q_length > _few_queries.MOST:
        return create_block_mask(whole, batch_size, None, q_length, kv_length, device)
    return _few_queries.block_mask(
        mask_function, whole, (batch_size, q_length, kv_length), q_offset, kv_offset, padding, device)


def sees_all_keys(attention_mask: torch.Tensor) -> bool:
    """Whether nothing is padding, where that can be told: on the CPU, and not while Dynamo traces."""
    if torch.compiler.is_dynamo_compiling() or attention_mask.device.type != "cpu":
        return False
    return bool(attention_mask.all())


def dense_mask(
    as_bools: bool, batch_size: int, q_length: int, kv_length: int, q_offset: Any, kv_offset: Any, mask_function: Any,
    attention_mask: torch.Tensor | None, device: Any, options: dict[str, Any],
) -> torch.Tensor:
    """[batch_size, 1, q_length, kv_length], as transformers makes it for "sdpa" (bool), or for "eager" (floating)."""
    from transformers.masking_utils import eager_mask, sdpa_mask

    make: Any = sdpa_mask if as_bools else eager_mask
    made: torch.Tensor = make(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False, device=device, **options)
    return made


def attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None,
    scaling: float | None = None, dropout: float = 0.0, is_causal: bool | None = None, softcap: float | None = None,
    s_aux: torch.Tensor | None = None, position_bias: torch.Tensor | None = None, indices: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of one layer (`module`): query [B, Hq, L, D], key and value [B, Hkv, S, D].

    - scaling: by default 1 / sqrt(D). dropout: the share of weights that become 0. softcap: c tanh(score / c).
      is_causal: without a mask, by default the layer's.
    - attention_mask is what mask() returned, or a tensor that broadcasts to [B, Hq, L, S]: bool (True takes part) or
      floating (added).
    - s_aux [Hq] are sinks; `sinks` [B, Hq, L, 1] has one a query.
    - position_bias, which broadcasts to [B, Hq, L, S], is added to the scores.
    - indices [B, L, n], for sparse attention: the keys that a query sees.

    Returns out [B, L, Hq, D], and None for the weights. Raises ValueError if output_attentions asks for weights, for a
    mask of another shape or type, and for block_indices.
    """
    refuse_unread(kwargs)
    call = Call(query, key, value, scaling, clamps=True)
    score = "score" if softcap is None else _forms.softcap(float(softcap))
    scores = *query.shape[:3], key.shape[2]
    if isinstance(attention_mask, TorchBlockMask):
        check_block_mask(call, attention_mask)
        few = _few_queries.of(attention_mask)
        if few is not None and position_bias is None and indices is None:  # they are indexed from the first query on
            score, attention_mask = few.set(call, score), few.mask
        if not torch.compiler.is_dynamo_compiling():
            set_mask(call, attention_mask)
    elif attention_mask is not None:
        score = with_dense_mask(call, attention_mask[..., : key.shape[2]], scores, score)
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        call.mask = _forms.CAUSAL
    if position_bias is not None:
        check_extents(position_bias.shape, scores, "position_bias")
        position_bias = with_four_axes(position_bias)
        broadcast = tuple(extent == 1 for extent in position_bias.shape)
        score = f"({score}) + position_bias[{_forms.broadcast_index(broadcast)}]"
        call.captures["position_bias"] = position_bias
    if indices is not None:
        score = f"where(chosen_keys[b, q_idx, kv_idx], {score}, -inf)"
        chosen = torch.zeros(*indices.shape[:2], key.shape[2], dtype=torch.bool, device=indices.device)
        call.captures["chosen_keys"] = chosen.scatter_(-1, indices.long(), True)
    if score != "score":
        call.score = score
    if s_aux is not None:
        call.options["sinks"] = s_aux.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
    if dropout > 0.0 and module.training:
        call.set_dropout(dropout)
    call.with_lse = sinks is not None
    batch, heads, length, _ = query.shape
    last = value.shape[3]
    strides = length * heads * last, last, heads * last, 1  # as in [B, L, H, D]
    call.out = query.new_empty_strided((batch, heads, length, last), strides)
    is_late = torch.compiler.is_dynamo_compiling() and isinstance(attention_mask, TorchBlockMask)
    out, lse = compiled(call, None, attention_mask) if is_late else attend(call)
    if sinks is not None and lse is not None:  # a sink takes its share of what the keys have
        out = out * torch.sigmoid(lse.unsqueeze(-1) - sinks).to(out.dtype)
    return out.transpose(1, 2), None


def refuse_unread(kwargs: dict[str, Any]) -> None:
    """Raises ValueError for arguments that would change the result and are not read."""
    if kwargs.get("output_attentions"):
        raise ValueError("attn_implementation='heddle' keeps no attention weights; output_attentions needs 'eager'")
    if kwargs.get("block_indices") is not None:
        raise ValueError("attn_implementation='heddle' does not read block_indices, the blocks of keys that a sparse "
                         "layer sees; load the model with 'eager' or 'sdpa'")


def with_four_axes(x: torch.Tensor) -> torch.Tensor:
    return x.reshape((1,) * (4 - x.dim()) + tuple(x.shape)) if x.dim() < 4 else x


def with_dense_mask(call: Call, given: torch.Tensor, scores: tuple[int, ...], score: str) -> str:
    """The score under a dense mask, which becomes a capture."""
    if given.dtype != torch.bool and not given.dtype.is_floating_point:
        raise ValueError(f"attention_mask is {given.dtype}; bool (True takes part) and floating types (added) are "
                         "accepted")
    check_extents(given.shape, scores, "attention_mask")
    call.captures["attn_mask"] = mask = with_four_axes(given)
    return _forms.tensor_mask(mask.dtype == torch.bool, tuple(extent == 1 for extent in mask.shape), score)


def paged_attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None,
    scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None,
    s_aux: torch.Tensor | None = None, cache: Any = None, cu_seq_lens_q: Any = None, cu_seq_lens_k: Any = None,
    max_seqlen_q: Any = None, max_seqlen_k: Any = None, block_table: Any = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of one layer (`module`) under continuous batching: query [1, Hq, T, D], key and value [1, Hkv, T,
    D].

    The rows of all sequences stand one after the other. `cache` stores the new keys and values and returns all keys of
    the sequences. A query attends to the keys of its own sequence up to its own position, within the layer's sliding
    window. cu_seq_lens_q and cu_seq_lens_k, i32 [N + 1], have the first row of each sequence; max_seqlen_q and
    max_seqlen_k bound their lengths; attention_mask is not read. scaling and softcap are attention()'s. s_aux [Hq] are
    sinks. Returns out [1, T, Hq, D], and None for the weights. Raises ValueError without a paged cache, for dropout and
    for a block_table, which transformers makes only for flash-attention.
    """
    if cache is None:
        raise ValueError("'paged|heddle' runs under continuous batching, which brings a paged cache; 'heddle' is for an "
                         "ordinary forward pass")
    if block_table is not None:
        raise ValueError("'paged|heddle' reads the cache by read_index and write_index; a block_table is given")
    if dropout > 0.0 and module.training:
        raise ValueError("'paged|heddle' has no dropout; continuous batching is for inference")
    window = kwargs.get("sliding_window", getattr(module, "sliding_window", None))
    if isinstance(cu_seq_lens_k, dict):
        kind = "sliding_attention" if window else "full_attention"
        cu_seq_lens_k, max_seqlen_k = cu_seq_lens_k[kind], max_seqlen_k[kind]
    layer: Any = module.layer_idx
    rows = None if window or max_seqlen_q > _few_queries.MOST else stored_rows(
        cache, layer, key, value, kwargs["read_index"], kwargs["write_index"])
    if rows is not None:
        keys, values, listed = rows
        pages = {"page_table": listed, "page_starts": cu_seq_lens_k}
        cu_seq_lens_k = None
    else:
        pages = {}
        keys, values = cache.update(
            key_states=key, value_states=value, layer_idx=module.layer_idx, read_index=kwargs["read_index"],
            write_index=kwargs["write_index"])
    out = serving.varlen_func(
        query.squeeze(0).transpose(0, 1), keys, values, cu_seq_lens_q, cu_seq_lens_k, max_seqlen_q, max_seqlen_k,
        softmax_scale=scaling, causal=True, window_size=(window - 1 if window else -1, -1), softcap=softcap or 0.0,
        sinks=s_aux, **pages)
    return out.unsqueeze(0), None


def stored_rows(cache: Any, layer: int, key: torch.Tensor, value: torch.Tensor, read: Any,
                write: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Stores the new rows of a layer without a window, as cache.update() does. Returns its keys and values as pages of
    one row [rows, 1, Hkv, D], which attention reads where they are, and the list of the sequences' rows: update() would
    copy all of them. None if nothing is read, and for a cache of another class."""
    try:
        group, inside = cache.layer_index_to_group_indices[layer]
        stored, windowed = (cache.key_cache[inside], cache.value_cache[inside]), cache.sliding_windows[layer] != 1
    except (AttributeError, KeyError, IndexError, TypeError):
        return None
    if windowed or read[group].numel() == 0 or any(rows.dim() != 3 for rows in stored):
        return None
    for rows, new in zip(stored, (key, value)):
        rows.index_copy_(0, write[group], new.squeeze(0).transpose(0, 1))
    return stored[0].unsqueeze(1), stored[1].unsqueeze(1), read[group].to(torch.int32)
