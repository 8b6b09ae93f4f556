"""Attributes of torch's block masks beside the lists of blocks. No kernel of heddle reads them.

torch 2.12 and later keep the order in which a deterministic backward of torch's own writes dq: dq_write_order and its
kin. They are kept and computed as torch does, so that the mask can go back to torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

from ._block_lists import LISTS

ESSENTIALS = "seq_lengths", "BLOCK_SIZE", "mask_mod"
METADATA = tuple([
    name for name in (*getattr(flex.BlockMask, "_TENSOR_ATTRS", ()), *getattr(flex.BlockMask, "_CONTEXT_ATTRS", ()))
    if name not in LISTS and name not in ESSENTIALS])
KNOWN = "dq_write_order", "dq_write_order_full", "dq_kv_order", "dq_kv_order_spt"


def set_metadata(mask: Any, given: dict[str, Any]) -> None:
    """Sets all of METADATA; what is not given is None."""
    for name in METADATA:
        setattr(mask, name, given.get(name))


def metadata_of(mask: Any) -> dict[str, Any]:
    return {name: getattr(mask, name) for name in METADATA}


def of_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """METADATA from from_kv_blocks' arguments, of which dq_kv_order is a tensor or a bool.

    Raises TypeError for a name that this torch does not have, NotImplementedError for one that is newer than heddle,
    ValueError for a dq_kv_order of another type.
    """
    made = dict(given)
    for name in given:
        if name not in METADATA or name == "dq_kv_order_spt":
            raise TypeError(f"BlockMask.from_kv_blocks of torch {torch.__version__} has no argument '{name}'")
        if name not in KNOWN and given[name] is not None:
            raise NotImplementedError(f"BlockMask.from_kv_blocks does not know torch's argument '{name}'; "
                                      f"{', '.join(KNOWN[:3])} are accepted")
    order = made.pop("dq_kv_order", None)
    if order is not None and not isinstance(order, (bool, torch.Tensor)):
        raise ValueError(f"dq_kv_order is {order!r}; a bool, a tensor and None are accepted")
    if order is not None:
        made["dq_kv_order_spt" if isinstance(order, bool) else "dq_kv_order"] = order
    return made


def compute(mask: Any, descending: bool | None) -> None:
    """Sets dq_write_order of the mask's lists for keys in this order."""
    computed: Any = flex  # torch 2.11 has no such function
    orders = computed._compute_dq_write_order_from_block_mask(mask, dq_kv_order=descending)
    set_metadata(mask, {"dq_write_order": orders[0], "dq_write_order_full": orders[1], "dq_kv_order_spt": descending})


def follow(made: Any, source: Any) -> None:
    """Gives a cropped mask the order that its source has."""
    if getattr(source, "dq_write_order", None) is not None:
        compute(made, source.dq_kv_order_spt)


def refuse_tensor_order(mask: Any, action: str) -> None:
    if getattr(mask, "dq_kv_order", None) is not None:
        raise NotImplementedError(f"{action} a BlockMask whose dq_kv_order is a tensor: make a new one, with a "
                                  "dq_write_order that matches")


def check_create(given: dict[str, Any]) -> bool:
    """Whether create_block_mask is asked for a dq_write_order. Raises TypeError for unknown names, ValueError for a
    dq_kv_order that is no bool."""
    for name in given:
        if name not in ("compute_dq_write_order", "dq_kv_order"):
            raise TypeError(f"create_block_mask() got an unexpected keyword argument '{name}'")
    if not isinstance(given.get("dq_kv_order", True), bool):
        raise ValueError("dq_kv_order must be a bool when using create_block_mask")
    wanted = bool(given.get("compute_dq_write_order", False))
    if wanted and "dq_write_order" not in METADATA:
        raise NotImplementedError(f"compute_dq_write_order needs torch 2.12 or later; this is {torch.__version__}")
    return wanted
