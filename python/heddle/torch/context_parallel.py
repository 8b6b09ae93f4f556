"""Attention over a sequence that is spread over several ranks (context parallelism), with any mask and any mod.

Queries stay on their rank. Before attention a rank receives the rows of keys and values that the blocks of its queries
read, by one all_to_all_single with split sizes. After the backward it sends their gradients back, in f32. The rank of
a query computes all of its scores, each once, in one attention over all keys; with own_first in two, whose results it
merges.

Mods see the indices of the whole sequence. Tensors that they read are whole and the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from ._call import Call
from ._context_attention import ContextAttention, forward, prepare
from ._context_cache import ContextCache
from ._context_call import ContextCall, compare, context_call, set_dropout
from ._context_dtensors import unwrapped, wrapped
from ._context_plan import ContextPlan, partition
from ._context_positions import tables
from ._context_rows import shard, unshard
from ._eager_backward import check_differentiable
from ._flex import check_inputs
from ._inputs import autocast, is_plain, refuse_others, refuse_tangents
from ._mask_mods import noop_mask
from ._private_names import identity
from ._results import empty_lse

__all__ = ["ContextCache", "ContextPlan", "attention", "partition", "positions", "shard", "unshard"]


def positions(plan: ContextPlan) -> torch.Tensor:
    """The positions of this rank's queries in the whole sequence, i64, ascending: `plan.positions`. Use them for rotary
    embeddings.

    >>> import torch.distributed as dist
    >>> from heddle.torch import context_parallel
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> context_parallel.positions(context_parallel.partition(q_len=4))
    tensor([0, 1, 2, 3])
    >>> dist.destroy_process_group()
    """
    return plan.positions


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: ContextPlan, *,
    score_mod: Callable[..., torch.Tensor] | None = None, block_mask: Any = None, scale: float | None = None,
    enable_gqa: bool = False, sinks: torch.Tensor | None = None, return_aux: AuxRequest | None = None,
    dropout_p: float = 0.0, dropout_seed: int | torch.Tensor | None = None, head_groups: int | None = None,
    keep_kv: bool = False, reduce_captures: bool = False, own_first: bool = False,
) -> Any:
    """The attention of this rank's queries over the whole sequence. All ranks of the plan's group must call it, and its
    backward, in the same order, with their own rows.

    - query [B, Hq, rows, D], key [B, Hkv, rows, D] and value [B, Hkv, rows, Dv] have one floating type and this rank's
      rows, as `shard` takes them. With enable_gqa Hkv is a divisor of Hq. All three may be DTensors with placement
      Shard(2) on the plan's ranks; results are then DTensors, too.
    - score_mod(score, b, h, q_idx, kv_idx): a torch function, as in flex_attention. Indices are those of the whole
      sequence, heads those of the model.
    - block_mask: None: the plan's mask; or one of the plan's masks; or another one over the whole sequence.
    - sinks [Hq]: an extra logit for each head, without a value.
    - return_aux: AuxRequest(lse=True, max_scores=True); the result is then (out, AuxOutput). Both are whole: a row has
      all of its keys here. lse has a gradient.
    - dropout_p, dropout_seed: weights are 0 with this probability. The choice depends only on the seed and on global
      indices, so any number of ranks drops the same weights. A seed is an int or a 0-d tensor, the same on all ranks;
      None: rank 0 draws one and sends it to the others.
    - head_groups: the number of groups of heads, a divisor of Hkv. One group is computed while the next is exchanged.
      None: chosen by size on a GPU, 1 on the CPU.
    - own_first: attends to this rank's own keys while those of others are on their way, and then to these; the backward
      returns gradients beside own keys likewise. Takes two f32 copies of out and of dQ, and has no effect where rows
      cross hosts in two steps.
    - keep_kv: keeps the received keys and values for the backward, which otherwise receives them again.
    - reduce_captures: sums the gradients of sinks and of tensors that score_mod reads over the ranks, in f32. Without
      it they are this rank's part, like those of all parameters under context parallelism.

    Returns out [B, Hq, rows, Dv]. Autograd computes gradients of query, key, value, sinks, lse, and of tensors that
    score_mod reads. dK and dV are added in f32 (f64 for f64 inputs): first this rank's, then in the order of the ranks.

    Raises ValueError for shapes and devices that do not fit the plan, and on each rank if ranks disagree (partition's
    `checks`); RuntimeError on each other rank if one raised; NotImplementedError for mods without an expression, under
    torch.func's transforms, and for other tensor subclasses.

    torch.compile supports it with fullgraph=True, and the compiled code serves other plans. There block_mask must be
    one of the plan's masks, dropout needs a seed, max_scores are refused, and keep_kv has no effect.

    A group of one process here; a launcher as torchrun makes them of several:

    >>> import torch, torch.distributed as dist
    >>> from heddle.torch import context_parallel
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> plan = context_parallel.partition(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx, q_len=64)
    >>> q, k, v = (context_parallel.shard(x, plan, dim=2) for x in torch.randn(3, 1, 2, 64, 8))
    >>> alibi = lambda score, b, h, q_idx, kv_idx: score - (q_idx - kv_idx)
    >>> context_parallel.attention(q, k, v, plan, score_mod=alibi).shape
    torch.Size([1, 2, 64, 8])
    >>> dist.destroy_process_group()
    """
    if not isinstance(plan, ContextPlan):
        raise TypeError(f"plan is {type(plan).__name__}; what context_parallel.partition makes is accepted")
    if torch.compiler.is_dynamo_compiling():
        return compiled(query, key, value, plan, score_mod, block_mask, scale, enable_gqa, sinks, return_aux, dropout_p,
                        dropout_seed, head_groups, reduce_captures, own_first)
    context, error, max_scores, mesh = None, None, None, None
    try:
        refuse_others(query=query, key=key, value=value)
        mesh, (query, key, value) = unwrapped(plan, query=query, key=key, value=value)
        if not is_plain(query, key, value):
            raise NotImplementedError("query, key and value are not plain tensors, or a transform or a mode is active; "
                                      "plain tensors are accepted")
        query, key, value = autocast(query, key, value)
        seed = drawn_seed(plan, query, dropout_p, dropout_seed)
        context = context_call(query, key, value, plan, score_mod, block_mask, scale, enable_gqa, sinks, dropout_p,
                               seed, head_groups, keep_kv, reduce_captures, own_first)
        refuse_tangents(*context.call.tensors())
        if needs_gradients(context):
            check_differentiable(context.call)
        if return_aux is not None and return_aux.max_scores:
            max_scores = empty_lse(context.call.query)
        prepare(context, max_scores)
    except Exception as caught:
        error = caught
    compare(plan, context, error)
    assert context is not None
    if dropout_p not in (0.0, 1.0) and dropout_seed is None:
        dist.broadcast(context.call.captures["_dropout_seed"], group=plan.ranks.group, group_src=0)
    out, lse, max_scores = (wrapped(x, mesh, plan) for x in (*attended(context, max_scores), max_scores))
    if return_aux is None:
        return out
    return out, AuxOutput(lse=lse if return_aux.lse else None, max_scores=max_scores)


def compiled(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: ContextPlan, score_mod: Any, block_mask: Any,
    scale: float | None, enable_gqa: bool, sinks: torch.Tensor | None, return_aux: AuxRequest | None, dropout_p: float,
    dropout_seed: Any, head_groups: int | None, reduce_captures: bool, own_first: bool,
) -> Any:
    """The call as Dynamo traces it. What needs the plan's content is checked when it runs."""
    from ._context_higher_order import context_attention

    if return_aux is not None and return_aux.max_scores:
        raise NotImplementedError("max_scores are computed by eager calls alone, and torch.compile traces this one; "
                                  "lse is computed there")
    if dropout_p not in (0.0, 1.0) and dropout_seed is None:
        raise NotImplementedError("dropout_seed is None, and torch.compile traces this call; a seed is accepted there")
    query, key, value = autocast(query, key, value)
    call = Call(query, key, value)
    check_inputs(call, score_mod, None, enable_gqa)
    number = plan.number_of(block_mask)
    exchange = plan.masks[number][1]
    mask = exchange.mask
    set_dropout(call, dropout_p, drawn_seed(plan, query, dropout_p, dropout_seed))
    with_score = score_mod is not None
    options = {"with_lse": True, "with_score": with_score, "with_mask": False, "score": None, "weight": call.weight,
               "captures": {**mask.captures, **call.captures, **tables(exchange.rows)},
               "params": {**mask.params, **call.params}, "tensors": {} if sinks is None else {"sinks": sinks},
               "mask": mask.text, "plan": plan.number, "exchange": number, "groups": head_groups or 0,
               "reduces": reduce_captures, "own_first": own_first}
    traced_mod = score_mod if with_score else identity
    out, lse = context_attention(query, key, value, traced_mod, (0, 0, 0, 0, noop_mask), scale, options)
    if return_aux is None:
        return out
    return out, AuxOutput(lse=lse if return_aux.lse else None, max_scores=None)


def drawn_seed(
    plan: ContextPlan, query: torch.Tensor, p: float, given: int | torch.Tensor | None
) -> torch.Tensor | None:
    """The seed as a 0-d tensor. Without one each rank draws, so that generators stay in step, and rank 0's counts."""
    if p in (0.0, 1.0):
        return None
    if given is None:
        return torch.randint(0, 2**31 - 1, (), device=query.device)
    if isinstance(given, torch.Tensor):
        if given.dim() != 0 or given.is_floating_point():
            raise ValueError(f"dropout_seed is {given.dtype} {list(given.shape)}; an int or a 0-d tensor of integers "
                             "is accepted")
        return given.to(query.device)
    return torch.tensor(given, dtype=torch.int64, device=query.device)


def needs_gradients(context: ContextCall) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in context.call.tensors())


def attended(context: ContextCall, max_scores: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    if needs_gradients(context):
        record: Any = ContextAttention.apply
        out, lse = record(context, max_scores, *context.call.tensors())
        return out, lse
    made = forward(context, max_scores)
    return made.out, made.lse
