"""Pictures with Matplotlib: block masks, attention maps, speed curves.

Functions that draw do so into `axes`, or into a new figure, and return the axes. Notebooks show block masks and
explanations without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ._attention import attention
from ._block_mask import BlockMask
from ._options import Options
from ._types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["attention_map", "block_mask", "seconds", "speed_curves", "weights"]

EMPTY, PARTIAL, FULL = "#f1f0ec", "#f2b14e", "#2f6ba6"  # as BlockMask.svg has them


def _axes(axes: Axes | None, size: tuple[float, float]) -> Axes:
    if axes is not None:
        return axes
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def block_mask(mask: Any, *, sequence: int = 0, head: int = 0, axes: Axes | None = None) -> Axes:
    """One score matrix of `mask`, a heddle.BlockMask or heddle.torch.BlockMask: which blocks are full, partial, empty.

    Axes count tokens. Raises TypeError for anything else, ValueError for a sequence or head that is not there.

    >>> import heddle, heddle.viz
    >>> axes = heddle.viz.block_mask(heddle.BlockMask.build(heddle.mods.causal(), 64, 64, block=16))
    >>> axes.get_xlabel()
    'key'
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    core = mask if isinstance(mask, BlockMask) else getattr(mask, "_core_mask", lambda: None)()
    if not isinstance(core, BlockMask):
        raise TypeError(
            f"mask is of type {type(mask).__name__}; heddle.BlockMask and heddle.torch.BlockMask are accepted")
    if not 0 <= head < core.shape[1]:  # attention takes a mask of one head for all
        raise ValueError(f"head is {head}; the mask has {core.shape[1]}, and 0 to {core.shape[1] - 1} are accepted")
    q_blocks, kv_blocks = core.q_blocks(sequence), core.kv_blocks(sequence)
    kinds = np.zeros((q_blocks, kv_blocks), np.int8)
    for i in range(q_blocks):
        for run in core.row(sequence, head, i):
            kinds[i, run.begin:run.end] = 2 if run.full else 1
    where = core.sequences[sequence]
    axes = _axes(axes, (4.8, 4.4))
    edges = [np.minimum(np.arange(count + 1) * size, length) for count, size, length in (
        (kv_blocks, core.block[1], where.kv_len), (q_blocks, core.block[0], where.q_len))]
    axes.pcolormesh(edges[0], edges[1], kinds, cmap=ListedColormap([EMPTY, PARTIAL, FULL]), vmin=0, vmax=2,
                    edgecolors="white", linewidth=0.4 if max(kinds.shape) <= 64 else 0)
    axes.invert_yaxis()
    axes.set_aspect("equal" if where.q_len * 4 > where.kv_len and where.kv_len * 4 > where.q_len else "auto")
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    shares = [float((kinds == kind).mean()) if kinds.size else 0.0 for kind in range(3)]
    axes.legend(
        handles=[Patch(facecolor=color, edgecolor="#888888", label=f"{name} {share:.0%}") for name, color, share in zip(
            ("full", "partial", "empty"), (FULL, PARTIAL, EMPTY), (shares[2], shares[1], shares[0]))],
        loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)
    return axes


def weights(q: Array, k: Array, **options: Unpack[Options]) -> Any:
    """softmax(mod(scale * q k^T)): the attention weights, f32 [B, Hq, Sq, Skv], as heddle computes them.

    q [B, Hq, Sq, D], k [B, Hkv, Skv, D], on the CPU; the options are those of heddle.attention. The result holds
    B * Hq * Sq * Skv numbers, so this is for pictures.

    >>> import numpy as np, heddle.viz
    >>> q = np.zeros((1, 1, 2, 4), np.float32)
    >>> heddle.viz.weights(q, q, mask_mod="kv_idx <= q_idx")[0, 0]
    array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)
    """
    q, k = (np.asarray(x).astype(np.float32) for x in (q, k))
    batch, heads, keys, _ = k.shape
    identity = np.broadcast_to(np.eye(keys, dtype=np.float32), (batch, heads, keys, keys))
    return attention(q, k, identity, **options)


def attention_map(
    q: Array, k: Array, *, batch: int = 0, head: int = 0, labels: Sequence[str] | None = None, axes: Axes | None = None,
    **options: Unpack[Options],
) -> Axes:
    """The weights of one head as a picture: a row for each query. `labels` name the tokens, up to 64 of them.

    q, k and the options are those of weights(). It draws into `axes`.

    >>> import numpy as np, heddle.viz
    >>> q = np.random.default_rng(0).standard_normal((1, 2, 16, 8)).astype(np.float32)
    >>> heddle.viz.attention_map(q, q, head=1, mask_mod="kv_idx <= q_idx").get_title()
    'batch 0, head 1'
    """
    shown = weights(q, k, **options)[batch, head]
    axes = _axes(axes, (5.2, 4.4))
    largest = max(float(shown.max()), 1e-9)
    image = axes.imshow(shown, cmap="Blues", vmin=0, vmax=largest, interpolation="nearest", aspect="auto")
    axes.figure.colorbar(image, ax=axes, label="weight")
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.set_title(f"batch {batch}, head {head}", fontsize=10)
    if labels is not None and len(labels) <= 64:
        axes.set_xticks(range(shown.shape[1]), labels[: shown.shape[1]], rotation=90, fontsize=7)
        axes.set_yticks(range(shown.shape[0]), labels[: shown.shape[0]], fontsize=7)
    return axes


def seconds(
    call: Callable[[], Any], *, rounds: int = 5, at_least: float = 0.02, wait: Callable[[], Any] = lambda: None
) -> float:
    """The best time of one call, in seconds, over `rounds` rounds of at least `at_least` seconds each.

    A round ends with `wait()`. If there is none, `call` waits for what it starts on a GPU.
    """
    call()
    wait()
    best, repeats = float("inf"), 1
    for _ in range(rounds):
        while True:
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            wait()
            taken = time.perf_counter() - start
            if taken >= at_least:
                break
            repeats *= 2
        best = min(best, taken / repeats)
    return best


def speed_curves(
    calls: Mapping[str, Callable[[int], Callable[[], Any]]], lengths: Sequence[int], *,
    flops: Callable[[int], float] | None = None, rounds: int = 5, axes: Axes | None = None,
) -> Axes:
    """Times each of `calls` at each of `lengths` and draws the curves: TFLOP/s if `flops(length)` is given, else
    milliseconds. calls[name](length) makes the call that is timed.

    >>> import numpy as np, heddle.viz
    >>> def plain(length):
    ...     x = np.ones((1, 1, length, 16), np.float32)
    ...     return lambda: heddle.attention(x, x, x)
    >>> axes = heddle.viz.speed_curves({"heddle": plain}, [16, 32], rounds=1)
    >>> axes.get_ylabel(), len(axes.lines)
    ('ms', 1)
    """
    axes = _axes(axes, (5.6, 3.8))
    for name, make in calls.items():
        times = [seconds(make(length), rounds=rounds) for length in lengths]
        figures = [1e3 * t if flops is None else flops(length) / t / 1e12 for t, length in zip(times, lengths)]
        axes.plot(lengths, figures, marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
    if flops is None:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xticks(list(lengths), [str(length) for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("length")
    axes.set_ylabel("ms" if flops is None else "TFLOP/s")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return axes
