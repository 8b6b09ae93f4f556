"""The mods that arguments stand for, as text: causal, windows, softcap, masks that are tensors, dropout."""

from __future__ import annotations

CAUSAL = "kv_idx <= q_idx"
# The last query stands at the last key.
SHIFT = "(kv_len + kv_start) - (q_len + q_start)"
CAUSAL_LOWER_RIGHT = f"kv_idx <= q_idx + ({SHIFT})"
# Weights: 0 with probability dropout_p.
DROPOUT = "where(random_uniform(dropout_seed, b, h, q_idx, kv_idx) < dropout_p, 0.0, 1.0 / (1.0 - dropout_p))"


def window(left: bool, right: bool) -> str:
    """Around the key at the query's place: `window_left` keys before it and `window_right` after it."""
    parts = [f"kv_idx <= q_idx + ({SHIFT}) + window_right"] if right else []
    parts += [f"kv_idx >= q_idx + ({SHIFT}) - window_left"] if left else []
    return " and ".join(parts)


def softcap(cap: float) -> str:
    """A model has one cap, so it is a literal: kernels use its bound."""
    return f"{cap!r} * tanh(score / {cap!r})"


def tensor_mask(is_bool: bool, broadcast: tuple[bool, ...]) -> str:
    """A score that a dense mask changes: a bool one takes scores out, another one adds. `broadcast` says which of its
    four axes have extent 1."""
    index = ", ".join("0" if one else axis for one, axis in zip(broadcast, ("b", "h", "q_idx", "kv_idx")))
    return f"where(attn_mask[{index}], score, -inf)" if is_bool else f"score + attn_mask[{index}]"
