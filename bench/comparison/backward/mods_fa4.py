"""Derivatives of mods in FlashAttention-4's language, which its user has to write. Only to be imported where
flash-attn-4 is installed."""

import cutlass.cute as cute

from comparison import mods_fa4 as forward
from comparison.backward import contenders
from comparison.backward.mod_peers import Unable, blocks_by_keys

BLOCK = forward.BLOCK


@cute.jit
def additive(g, s, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
    return g


@cute.jit
def softcap(g, s, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
    t = cute.math.tanh(s / 20.0, fastmath=True)
    return g * (1.0 - t * t)


DERIVATIVES = {forward.softcap: softcap}


def make(inputs, captures, mod, deterministic):
    """It has no gradients of captures, no dropout, and no deterministic mode with block masks."""
    if mod.reads or (mod.key != "full" and mod.key not in forward.CALLS):
        raise Unable
    call = dict(forward.CALLS.get(mod.key, {}))
    options = {name: call[name] for name in ("causal", "window_size", "score_mod", "mask_mod") if name in call}
    names = call.get("aux", ())
    if names:
        options["aux_tensors"] = [captures[name] for name in names]
    backward = dict(options)
    if "window_size" in call:
        backward["window_size_left"], backward["window_size_right"] = backward.pop("window_size")
    if "score_mod" in call:
        backward["score_mod_bwd"] = DERIVATIVES.get(call["score_mod"], additive)
    if "mask_mod" in call:
        if deterministic:
            raise Unable
        s = inputs.cell.s
        blocks = forward.compute_block_sparsity(
            BLOCK, BLOCK, 1, 1, s, s, call["mask_mod"], options.get("aux_tensors"), inputs.device
        )
        options["block_sparse_tensors"] = blocks
        backward["block_sparse_tensors"] = blocks_by_keys(inputs.torch, blocks, BLOCK)
    return contenders.Fa4(inputs, options, backward | {"deterministic": deterministic})
