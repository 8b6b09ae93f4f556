"""Mods in FlashAttention-4's language, CuTe DSL. Only to be imported where flash-attn-4 is installed."""

import cutlass
import cutlass.cute as cute
from flash_attn.cute.compute_block_sparsity import compute_block_sparsity
from flash_attn.cute.interface import flash_attn_func

BLOCK = 128  # queries and keys of its block masks


@cute.jit
def alibi(s, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
    head = cute.make_rmem_tensor(1, cutlass.Int32)
    head.store(h)
    slope = cute.make_rmem_tensor(1, cutlass.Float32)
    slope[0] = aux_tensors[0][head[0]]
    return s + slope.load() * (kv_idx - q_idx).to(cutlass.Float32)


@cute.jit
def relative_position(s, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
    return s + (q_idx - kv_idx).to(cutlass.Float32)


@cute.jit
def softcap(s, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
    return 20.0 * cute.math.tanh(s / 20.0, fastmath=True)


@cute.jit
def bias(s, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
    head = cute.make_rmem_tensor(1, cutlass.Int32)
    head.store(h)
    row = cute.make_rmem_tensor(1, cutlass.Int32)
    row.store(q_idx)
    key = cute.make_rmem_tensor(1, cutlass.Int32)
    key.store(kv_idx)
    term = cute.make_rmem_tensor(1, aux_tensors[0].element_type)
    term[0] = aux_tensors[0][head[0], row[0], key[0]]
    return s + term.load().to(cutlass.Float32)


@cute.jit
def prefix(b, h, q, k, info, aux):
    return (k < 1024) | (q >= k)


@cute.jit
def dilated(b, h, q, k, info, aux):
    return (q >= k) & ((q - k) % 4 == 0)


@cute.jit
def documents(b, h, q, k, info, aux):
    row = cute.make_rmem_tensor(1, cutlass.Int32)
    row.store(q)
    key = cute.make_rmem_tensor(1, cutlass.Int32)
    key.store(k)
    of_row = cute.make_rmem_tensor(1, cutlass.Int32)
    of_row[0] = aux[0][row[0]]
    of_key = cute.make_rmem_tensor(1, cutlass.Int32)
    of_key[0] = aux[0][key[0]]
    return (q >= k) & (of_row.load() == of_key.load())


@cute.jit
def tree(b, h, q, k, info, aux):
    row = cute.make_rmem_tensor(1, cutlass.Int32)
    row.store(q)
    key = cute.make_rmem_tensor(1, cutlass.Int32)
    key.store(k)
    entered = cute.make_rmem_tensor(1, cutlass.Int32)
    entered[0] = aux[0][row[0]]
    first = cute.make_rmem_tensor(1, cutlass.Int32)
    first[0] = aux[0][key[0]]
    last = cute.make_rmem_tensor(1, cutlass.Int32)
    last[0] = aux[1][key[0]]
    return (first.load() <= entered.load()) & (entered.load() <= last.load())


# A mod that the peer has built in is taken from there: that is its fastest.
CALLS = {
    "ALiBi": {"score_mod": alibi, "aux": ("slopes",)},
    "relative position": {"score_mod": relative_position},
    "softcap 20": {"score_mod": softcap},
    "bias, bf16": {"score_mod": bias, "aux": ("bias",)},
    "bias, f32": {"score_mod": bias, "aux": ("bias32",)},
    "causal": {"causal": True},
    "ALiBi, causal": {"score_mod": alibi, "aux": ("slopes",), "causal": True},
    "softcap 20, causal": {"score_mod": softcap, "causal": True},
    "window 1024": {"window_size": (1024, 0)},
    "prefix 1024": {"mask_mod": prefix},
    "documents, causal": {"mask_mod": documents, "aux": ("ids",)},
    "dilated": {"mask_mod": dilated},
    "tree": {"mask_mod": tree, "aux": ("enter", "last")},
}


class Fa4:
    """Takes [B, S, H, D]."""

    def __init__(self, inputs, captures, name):
        call = dict(CALLS[name])
        aux = [captures[one] for one in call.pop("aux", ())] or None
        if aux:
            call["aux_tensors"] = aux
        if "mask_mod" in call:
            s = inputs.cell.s
            call["block_sparse_tensors"] = compute_block_sparsity(
                BLOCK, BLOCK, 1, 1, s, s, call["mask_mod"], aux, inputs.device
            )
        self.inputs, self.options = inputs, call

    def __call__(self):
        inputs = self.inputs
        self.kept = flash_attn_func(inputs.q, inputs.k, inputs.v, return_lse=True, **self.options)

    def result(self):
        o, lse = self.kept if isinstance(self.kept, tuple) else (self.kept, None)
        return o.transpose(1, 2), lse
