"""What torch.utils.flop_counter counts for heddle::forward and heddle::backward: the products of all scores, whatever a mask
leaves out, as torch counts its own attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from ._operands import named
from ._operators import GIVEN


def lengths_of(starts: torch.Tensor | None, longest: int | None, sequences: int, rows: int) -> list[int]:
    """The rows of each sequence. Where nobody may look at `starts`, all have the longest's."""
    if starts is None:
        return [rows] * sequences
    count = starts.shape[0] - 1
    if type(starts) is torch.Tensor and starts.device.type != "meta":
        return [int(length) for length in starts.diff().tolist()]
    return [rows if longest is None else longest] * count


def scores_of(query: torch.Tensor, key: torch.Tensor, rest: Any) -> int:
    """How many scores a call has."""
    given = named(rest)
    options = dict(zip(given["option_names"], given["options"] or ()))
    queries = lengths_of(options.get("cu_seqlens_q"), given["max_q_len"], query.shape[0], query.shape[2])
    keys = lengths_of(options.get("cu_seqlens_kv"), given["max_kv_len"], len(queries), key.shape[2])
    used = options.get("kv_lengths")
    if "page_table" in options:
        keys = [given["max_kv_len"] or key.shape[2] * options["page_table"].shape[-1]] * len(queries)
    if used is not None and type(used) is torch.Tensor and used.device.type != "meta":
        keys = [int(length) for length in used.tolist()]
    return int(query.shape[1]) * sum(rows * length for rows, length in zip(queries, keys))


def forward_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, out_val: Any = None) -> int:
    return 2 * scores_of(query, key, rest) * int(query.shape[3] + value.shape[3])


def backward_flops(*args: Any, out_val: Any = None) -> int:
    query, key, value, *rest = args[GIVEN:]
    return 2 * scores_of(query, key, rest) * int(3 * query.shape[3] + 2 * value.shape[3])


register_flop_formula(torch.ops.heddle.forward, get_raw=True)(forward_flops)
register_flop_formula(torch.ops.heddle.backward, get_raw=True)(backward_flops)
