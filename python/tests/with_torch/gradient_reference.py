"""Attention by torch's own operations on the whole score matrix, whose autograd is the reference of gradients."""

import torch
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode


class Gathers(TorchFunctionMode):
    """`tensor[index]` with the gradient of aten's index. (That of torch's own mode is wrong where indices are few.)"""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(one, torch.Tensor) for one in index) and all(
                    isinstance(one, (torch.Tensor, int)) for one in index):
                return torch.ops.aten.index(args[0], [torch.as_tensor(one) for one in index])
        return function(*args, **(kwargs or {}))


def indices(*extents):
    return [torch.arange(extent) for extent in extents]


def dense(query, key, value, score_mod=None, mask_mod=None, scale=None, sinks=None, factors=None):
    """(out, lse): torch maps the mods over all scores. Rows without a key give 0 and -inf. Weights are multiplied by
    `factors`."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1).expand(query.shape[0], -1, -1, -1) for x in (key, value))
    scores = (query @ key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    positions = indices(*scores.shape)
    if score_mod is not None:
        with Gathers():
            scores = flex._vmap_for_bhqkv(score_mod, prefix=(0,))(scores, *positions)
    if mask_mod is not None:
        with Gathers():
            allowed = flex._vmap_for_bhqkv(mask_mod, prefix=())(*positions)
        scores = torch.where(allowed, scores, -torch.inf)
    attends = (scores > -torch.inf).any(-1) | scores.isnan().any(-1)
    safe = torch.where(attends[..., None], scores, 0.0)
    lse = safe.logsumexp(-1)
    if sinks is not None:
        lse = torch.where(attends, torch.logaddexp(lse, sinks[:, None]), sinks[:, None])
    weights = torch.where(attends[..., None], (safe - lse[..., None]).exp(), 0.0)
    if factors is not None:
        weights = weights * factors
    return weights.to(value.dtype) @ value, lse if sinks is not None else torch.where(attends, lse, -torch.inf)


def gradients(results, inputs, incoming):
    """The gradients of sum(result * incoming) over finite results. Zeros where torch has none."""
    loss = sum((torch.where(x.isfinite(), x, 0.0) * g).sum() for x, g in zip(results, incoming))
    made = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [torch.zeros_like(x) if one is None else one for x, one in zip(inputs, made)]


def assert_same(got, want, tolerance, names=None):
    """Relative to the largest element of each tensor."""
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        assert x.shape == y.shape and x.dtype == y.dtype
        error = (x.double() - y.double()).abs().max() if x.numel() else torch.zeros(())
        limit = tolerance * max(1.0, y.double().abs().max().item() if y.numel() else 1.0)
        assert error <= limit, f"{names[i] if names else i}: {error} > {limit}"


def random(*shape, seed=0, dtype=torch.float64, requires_grad=True):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(requires_grad)


def qkv(batch=2, heads=4, kv_heads=4, q_len=13, kv_len=17, dim=8, dtype=torch.float64):
    return [random(batch, heads, q_len, dim, seed=1, dtype=dtype),
            *(random(batch, kv_heads, kv_len, dim, seed=seed, dtype=dtype) for seed in (2, 3))]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


slopes = random(4, seed=9)


def alibi(score, b, h, q_idx, kv_idx):
    return score + slopes[h] * (kv_idx - q_idx)


def assert_gradients(ours, torchs, leaves, tolerance=1e-12):
    results, wanted = ours(), torchs()
    incoming = [random(*x.shape, seed=5, dtype=x.dtype, requires_grad=False) for x in results]
    got = gradients(results, leaves, incoming)
    assert_same(got, gradients(wanted, leaves, incoming), tolerance)
    return got
