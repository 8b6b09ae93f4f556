"""flex_attention under torch.compile: a higher-order operator that Dynamo handles as torch's own, so that what a mod
captures becomes an input of the graph. Called, it turns the traced mods into text and calls heddle::forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from ._library import traced_attend
from ._modes import trace_with
from ._recording import MASK_PREFIX, Recording
from ._run import Call
from ._trace import MASK, SCORE

NAME = "heddle_flex_attention"


class Inputs:
    """What Dynamo lifted out of a mod, in the form of a walk over a function (heddle._reached.Reached)."""

    def __init__(self, lifted: Sequence[Any]) -> None:
        self.arrays = [x for x in lifted if isinstance(x, torch.Tensor)]
        self.numbers = [x for x in lifted if not isinstance(x, torch.Tensor)]
        self.array_names = [f"x{i}" for i in range(len(self.arrays))]
        self.number_names = [f"n{i}" for i in range(len(self.numbers))]


def add(call: Call, mod: Callable[..., Any], lifted: Sequence[Any], device: torch.device, is_mask: bool) -> Any:
    """The mod's expression; its captures and params go to the call."""
    recording = Recording(Inputs(lifted), device, MASK_PREFIX if is_mask else "")
    arguments = [recording.stand_in(x) for x in lifted]
    expr = trace_with(
        recording, lambda *own: mod(*own, *arguments), MASK if is_mask else SCORE, "bool" if is_mask else "f32")
    call.captures.update(recording.captures)
    call.params.update(recording.values())
    return expr


class FlexAttention(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__(NAME)  # type: ignore[no-untyped-call]

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any, block_mask: tuple[Any, ...],
        scale: float | None, options: dict[str, Any], score_lifted: Sequence[Any] = (), mask_lifted: Sequence[Any] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        call = Call(scale=scale, with_lse=options["with_lse"])
        call.clamps = True
        if options["with_score"]:
            call.score = add(call, score_mod, score_lifted, query.device, False)
        if options["with_mask"]:
            call.mask = add(call, block_mask[-1], mask_lifted, query.device, True)
        sizes, lists = block_mask[:4], [x for x in block_mask[4:-1] if x is not None]
        out, lse = traced_attend(query, key, value, call, None, None, lists, sizes if lists else ())
        return out, query.new_empty((0,)) if lse is None else lse


flex_attention = FlexAttention()


def register_with_dynamo() -> None:
    """Dynamo finds the handler of a higher-order operator by its name."""
    from torch._dynamo.variables import higher_order_ops

    table: dict[str, Any] = higher_order_ops._hop_name_to_variable_class
    table[NAME] = table["flex_attention"]


register_with_dynamo()
