"""A rank's rows of a whole tensor, and the whole tensor from all ranks' rows."""

from __future__ import annotations

from typing import Any

import torch

from ._context_exchange import all_to_all
from ._context_plan import ContextPlan


def is_of_keys(plan: ContextPlan, length: int, of_keys: bool | None, whole: bool) -> bool:
    """Whether an axis of this length has the keys' rows. Raises ValueError if it has neither the keys' nor the
    queries'."""
    extents = (plan.q_len, plan.kv_len) if whole else (plan.rows(plan.rank), plan.rows(plan.rank, of_keys=True))
    chosen = length != extents[0] if of_keys is None else of_keys
    if length != extents[chosen]:
        raise ValueError(f"x has {length} rows along dim; {extents[0]} queries or {extents[1]} keys "
                         f"{'of the whole sequence' if whole else 'of this rank'} are accepted")
    return chosen


def shard(x: torch.Tensor, plan: ContextPlan, dim: int, *, of_keys: bool | None = None) -> torch.Tensor:
    """This rank's rows of a tensor that each rank has whole: x[..., positions, ...] along `dim`.

    `of_keys` None: the axis has as many rows as the sequence has queries, or else keys. Differentiable: the gradient of
    x has this rank's rows, and zeros for the others'; the whole one is the sum over the ranks.

    Every tensor with a row for each token takes the same way: embeddings, labels (shifted before), positions.

    >>> import torch, torch.distributed as dist
    >>> from heddle.torch import context_parallel
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> plan = context_parallel.partition(q_len=4)
    >>> context_parallel.shard(torch.tensor([[5, 6, 7, 8]]), plan, dim=1)
    tensor([[5, 6, 7, 8]])
    >>> dist.destroy_process_group()
    """
    rows = plan.kv_positions if is_of_keys(plan, x.shape[dim], of_keys, True) else plan.positions
    return x.index_select(dim, rows.to(x.device))


def unshard(x: torch.Tensor, plan: ContextPlan, dim: int, *, of_keys: bool | None = None) -> torch.Tensor:
    """The whole tensor, in the order of the sequence, on each rank, from the rows that each one has. A collective.

    Differentiable: the gradient of x is the sum over all ranks of the gradients of its rows, in f32. If each rank
    computes the same loss of the whole tensor, that is as many times the loss's gradient as there are ranks.

    >>> import torch, torch.distributed as dist
    >>> from heddle.torch import context_parallel
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> plan = context_parallel.partition(q_len=4)
    >>> context_parallel.unshard(torch.tensor([5, 6, 7, 8]), plan, dim=0)
    tensor([5, 6, 7, 8])
    >>> dist.destroy_process_group()
    """
    record: Any = Unshard.apply
    whole: torch.Tensor = record(x, plan, dim % x.dim(), is_of_keys(plan, x.shape[dim], of_keys, False))
    return whole


class Unshard(torch.autograd.Function):
    """All rows from each rank's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, plan: ContextPlan, dim: int, of_keys: bool) -> torch.Tensor:
        ctx.plan, ctx.dim, ctx.of_keys = plan, dim, of_keys
        counts = [plan.rows(rank, of_keys) for rank in range(plan.size)]
        own = x.movedim(dim, 0).contiguous()
        rows = own.new_empty(sum(counts), *own.shape[1:])
        sent = own.repeat(plan.size, *(1,) * (own.dim() - 1))
        all_to_all(plan.ranks.group, rows, counts, sent, [own.shape[0]] * plan.size).wait()
        whole = torch.empty_like(rows)
        whole[order_of(plan, of_keys).to(x.device)] = rows
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, d_whole: torch.Tensor) -> Any:
        plan, dim = ctx.plan, ctx.dim
        counts = [plan.rows(rank, ctx.of_keys) for rank in range(plan.size)]
        rows = d_whole.movedim(dim, 0).index_select(0, order_of(plan, ctx.of_keys).to(d_whole.device)).contiguous()
        own = counts[plan.rank]
        came = rows.new_empty(own * plan.size, *rows.shape[1:])
        all_to_all(plan.ranks.group, came, [own] * plan.size, rows, counts).wait()
        total = came.reshape(plan.size, own, *rows.shape[1:])
        wide = torch.promote_types(rows.dtype, torch.float32)
        summed = torch.zeros(own, *rows.shape[1:], dtype=wide, device=rows.device)
        for part in total:  # in the order of the ranks
            summed += part
        return summed.to(d_whole.dtype).movedim(0, dim), None, None, None


def order_of(plan: ContextPlan, of_keys: bool) -> torch.Tensor:
    """The row of the whole sequence of each row of all ranks, rank by rank."""
    made = plan.made.keys if of_keys else plan.made.queries
    return torch.cat([torch.from_numpy(made.positions(rank)) for rank in range(plan.size)])
