"""DTensors of context parallel attention: their rows on this rank, and results as DTensors again."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ._context_plan import ContextPlan

SEQUENCE = 2  # the axis of query, key and value that is sharded


def is_dtensor(x: Any) -> bool:
    """Without an import of DTensor, which is slow."""
    return any(kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed")
               for kind in type(x).__mro__)


def unwrapped(plan: ContextPlan, **given: Any) -> tuple[Any, list[Any]]:
    """The mesh of DTensors, and each one's rows on this rank; None and the tensors themselves if none is a DTensor.

    Raises ValueError for DTensors beside others, for placements other than Shard(2), and for another mesh than the
    plan's.
    """
    kinds = {name: is_dtensor(x) for name, x in given.items()}
    if not any(kinds.values()):
        return None, list(given.values())
    if not all(kinds.values()):
        raise ValueError(f"{', '.join(name for name, is_one in kinds.items() if is_one)} are DTensors and the others "
                         "are not; all or none are accepted")
    for name, x in given.items():
        mesh, placements = x.device_mesh, x.placements
        members = dist.get_process_group_ranks(mesh.get_group()) if mesh.ndim == 1 else []
        is_plans = members == dist.get_process_group_ranks(plan.ranks.group)
        if not is_plans or len(placements) != 1 or not placements[0].is_shard(SEQUENCE):
            raise ValueError(f"{name} is a DTensor of {placements} on {mesh}; Shard({SEQUENCE}) on the plan's ranks is "
                             "accepted")
    query = next(iter(given.values()))
    return query.device_mesh, [x.to_local(grad_placements=x.placements) for x in given.values()]


def wrapped(x: torch.Tensor | None, mesh: Any, plan: ContextPlan) -> Any:
    """This rank's rows of a result as a DTensor over the plan's queries."""
    if x is None or mesh is None:
        return x
    from torch.distributed.tensor import DTensor, Shard

    shape = torch.Size((*x.shape[:SEQUENCE], plan.q_len, *x.shape[SEQUENCE + 1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(x, mesh, [Shard(SEQUENCE)], run_check=False, shape=shape, stride=stride)
