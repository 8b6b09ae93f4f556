"""torch's own functions that take-over puts others in place of, as they were when heddle.torch was imported."""

from __future__ import annotations

import types
from typing import cast

import torch
from torch.nn.attention import flex_attention as flex


def copy_of(function: types.FunctionType) -> types.FunctionType:
    """The function as it is now: its code may change."""
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention  # a builtin
# torch's function objects: others have imported them by name, so take-over changes their code.
flex_function = cast(types.FunctionType, flex.flex_attention)
block_mask_function = cast(types.FunctionType, flex.create_block_mask)
flex_attention = copy_of(flex_function)
create_block_mask = copy_of(block_mask_function)
