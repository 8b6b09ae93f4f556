"""Who does the same work as a row of mods.py. A peer that cannot is left out: other work is no comparison."""

from comparison import mod_peers as forward
from comparison.backward import contenders

NAMES = contenders.PEERS
Unable = forward.Unable


def flex(inputs, shared, captures, mod, deterministic):
    """Gradients of captures come from the same kernels, by atomics."""
    if deterministic or mod.key == "dropout":
        raise Unable
    wanted = {name: captures[name].clone().requires_grad_() for name in mod.reads}
    score, mask = mod.of.make(inputs.torch, captures | wanted) if mod.of else (None, None)
    return contenders.Flex(inputs, shared, score, mask, wanted)


def blocks_by_keys(torch, blocks, block):
    """FlashAttention-4's lists of key blocks for each block of queries, turned into what its backward takes: lists of
    query blocks for each block of keys."""
    turned = {}
    for kind in ("mask", "full"):
        counts, indices = getattr(blocks, f"{kind}_block_cnt"), getattr(blocks, f"{kind}_block_idx")
        if counts is None:
            continue
        listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
        attends = torch.zeros(*indices.shape[:-1], indices.shape[-1] + 1, dtype=torch.bool, device=indices.device)
        attends.scatter_(-1, torch.where(listed, indices, indices.shape[-1]).long(), True)
        attended = attends[..., :-1].transpose(-1, -2)
        turned[f"{kind}_block_cnt"] = attended.sum(-1).int().contiguous()
        turned[f"{kind}_block_idx"] = (
            attended.int().sort(dim=-1, descending=True, stable=True).indices.int().contiguous()
        )
    return type(blocks)(**turned, block_size=(block, block))


def fa4(inputs, shared, captures, mod, deterministic):
    from comparison.backward import mods_fa4

    return mods_fa4.make(inputs, captures, mod, deterministic)


def dropped(mod):
    return forward.DROPPED if mod.key == "dropout" else 0.0


def fa2(inputs, shared, captures, mod, deterministic):
    if mod.reads or mod.key not in ("full", "causal", "dropout"):
        raise Unable
    return contenders.fa2(inputs, mod.key == "causal", dropped(mod), deterministic)


def cudnn(inputs, shared, captures, mod, deterministic):
    """PyTorch's function gives no gradient of the bias."""
    if mod.reads or mod.key not in ("full", "causal", "dropout", "bias, bf16"):
        raise Unable
    bias = captures["bias"].expand(inputs.cell.batch, -1, -1, -1) if mod.key == "bias, bf16" else None
    return contenders.cudnn(inputs, mod.key == "causal", dropped(mod), bias, deterministic)


def make(name, inputs, shared, captures, mod, deterministic):
    """The peer on one row. Raises Unable, ImportError, or whatever it fails with."""
    return {"flex": flex, "fa4": fa4, "fa2": fa2, "cudnn": cudnn}[name](inputs, shared, captures, mod, deterministic)
