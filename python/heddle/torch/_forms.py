"""The mods that arguments stand for, as text: causal, windows, softcap, masks that are tensors, dropout."""

from __future__ import annotations

import re

CAUSAL = "kv_idx <= q_idx"
# Added to q_idx, this aligns the last query with the last key.
SHIFT = "(kv_len + kv_start) - (q_len + q_start)"
CAUSAL_LOWER_RIGHT = f"kv_idx <= q_idx + ({SHIFT})"
# Weights: 0 with probability dropout_p.
DROPOUT = "where(random_uniform(dropout_seed, b, h, q_idx, kv_idx) < dropout_p, 0.0, 1.0 / (1.0 - dropout_p))"


def window(left: bool, right: bool, shift: str = SHIFT) -> str:
    """`window_left` keys before a query's own key, `window_right` after it. The last query's own key is the last."""
    parts = [f"kv_idx <= q_idx + ({shift}) + window_right"] if right else []
    parts += [f"kv_idx >= q_idx + ({shift}) - window_left"] if left else []
    return " and ".join(parts)


USED_QUERIES = "q_idx < seqused_q[b]"
USED_SHIFT = "kv_len - seqused_q[b]"  # SHIFT where a sequence's last query is the last used one


def behind_padding(mask: str | None) -> str:
    """`mask` without the first `cache_leftpad[b]` keys."""
    return "kv_idx >= cache_leftpad[b]" + (f" and {mask}" if mask else "")


def padded_keys(score: str) -> str:
    """`score` without the keys at which key_padding[b, kv_idx] is False."""
    return f"where(key_padding[b, kv_idx], {score}, -inf)"


def softcap(cap: float) -> str:
    """The cap is a literal because kernels use it as a bound, and a model has one cap."""
    return f"{cap!r} * tanh(score / {cap!r})"


def tensor_mask(is_bool: bool, broadcast: tuple[bool, ...], score: str = "score") -> str:
    """`score` under a dense mask attn_mask of 4 axes: False takes a score out, a number is added.

    `broadcast` says which axes have extent 1.
    """
    index = broadcast_index(broadcast)
    return f"where(attn_mask[{index}], {score}, -inf)" if is_bool else f"{score} + attn_mask[{index}]"


def broadcast_index(broadcast: tuple[bool, ...]) -> str:
    return ", ".join("0" if one else axis for one, axis in zip(broadcast, ("b", "h", "q_idx", "kv_idx")))


def all_of(*masks: str) -> str:
    """The text of masks that all hold. Long texts begin with names for their parts (`_1 = ...; `): each mask keeps its own."""
    names, last = [], []
    for place, mask in enumerate(masks):
        head, _, value = mask.rpartition("; ")
        for name in re.findall(r"(?:^|; )(\w+) = ", head):
            head, value = (re.sub(rf"\b{name}\b", f"{name}_{place}", text) for text in (head, value))
        names += [head] if head else []
        last.append(f"({value})" if len(masks) > 1 else value)
    return "; ".join([*names, " and ".join(last)])
