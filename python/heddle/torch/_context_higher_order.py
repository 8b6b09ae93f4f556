"""Context parallel attention under torch.compile: a higher-order operator that Dynamo handles as flex_attention's.
Called, it turns the traced score_mod into text and calls heddle::context_forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from ._context_call import to_global_indices
from ._context_operators import traced
from ._higher_order import register_with_dynamo, traced_call

NAME = "heddle_context_attention"


class ContextOperator(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__(NAME)  # type: ignore[no-untyped-call]

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any, block_mask: tuple[Any, ...],
        scale: float | None, options: dict[str, Any], score_lifted: Sequence[Any] = (), mask_lifted: Sequence[Any] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        call = traced_call(query, key, value, score_mod, block_mask[-1], scale, options, score_lifted, mask_lifted)
        call.mask = options["mask"]
        to_global_indices(call, True)
        return traced(options["plan"], options["exchange"], options["groups"], options["reduces"],
                      options["own_first"], call)


context_attention = ContextOperator()
register_with_dynamo(NAME)
