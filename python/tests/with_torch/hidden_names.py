"""Calls of heddle.torch under a torch that lacks names. A program of its own: `hidden_names.py NAME...` hides dotted names
behind "torch." while heddle.torch looks for them, and says at last that all calls agree."""

import contextlib
import importlib.util
import sys
from operator import attrgetter
from pathlib import Path

import torch
import torch._functorch.pyfunctorch
import torch.distributed
import torch.nn.attention.flex_attention as flex
import torch.nn.attention.varlen
import torch.nn.functional as F
import torch.testing
import torch.utils._pytree
from torch.autograd import forward_ad

import heddle


@contextlib.contextmanager
def hidden(names):
    owners = [(attrgetter(name.rpartition(".")[0])(torch), name.rpartition(".")[2]) for name in names]
    kept = [getattr(owner, name) for owner, name in owners]
    for owner, name in owners:
        delattr(owner, name)
    try:
        yield
    finally:
        for (owner, name), value in zip(owners, kept):
            setattr(owner, name, value)


def fails(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def main():
    name = "heddle.torch._private_names"
    spec = importlib.util.spec_from_file_location(name, Path(heddle.__file__).parent / "torch" / "_private_names.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    with hidden(sys.argv[1:]):  # torch's own code needs some of them later
        spec.loader.exec_module(sys.modules[name])
    from heddle.torch import create_block_mask, enabled, flex_attention, scaled_dot_product_attention, varlen_attn

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 9, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    slopes = torch.rand(2, dtype=torch.float64, requires_grad=True)
    inputs = [q, k, v, slopes]
    allowed = torch.ones(9, 9, dtype=torch.bool).tril()

    def bias():
        made = slopes[:, None, None] * (torch.arange(9)[None, :] - torch.arange(9)[:, None])
        return made.masked_fill(~allowed, -torch.inf)

    want = F.scaled_dot_product_attention(q, k, v, bias())
    of_want = torch.autograd.grad(want.sin().sum(), inputs)

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 9, 9, "cpu")
    lists = flex.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 9, 9, "cpu", BLOCK_SIZE=4)

    def check(got):
        torch.testing.assert_close(got, want, atol=1e-7, rtol=1e-7)
        torch.testing.assert_close(torch.autograd.grad(got.sin().sum(), inputs), of_want, atol=1e-7, rtol=1e-7)

    for _ in range(3):  # calls that were made before go another way
        check(flex_attention(q, k, v, alibi, mask))
        check(flex_attention(q, k, v, alibi, lists))
        check(scaled_dot_product_attention(q, k, v, bias()))
    check(torch.utils.checkpoint.checkpoint(lambda *given: flex_attention(*given, alibi, mask), q, k, v, use_reentrant=False))
    with torch.autograd.graph.save_on_cpu():
        check(flex_attention(q, k, v, alibi, mask))
    with enabled():
        check(F.scaled_dot_product_attention(q, k, v, bias()))
        assert torch.jit.trace(lambda x: F.scaled_dot_product_attention(x, x, x), q.detach())(k.detach()).shape == k.shape

    rows, starts = [x.detach()[0].transpose(0, 1).contiguous().requires_grad_() for x in (q, k, v)], torch.tensor([0, 9], dtype=torch.int32)
    plain = F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in rows), is_causal=True)[0].transpose(0, 1)
    for _ in range(2):
        packed = varlen_attn(*rows, starts, starts, 9, 9, window_size=(-1, 0))
        torch.testing.assert_close(packed, plain, atol=1e-7, rtol=1e-7)
        torch.testing.assert_close(torch.autograd.grad(packed.sin().sum(), rows),
                                   torch.autograd.grad(plain.sin().sum(), rows, retain_graph=True), atol=1e-7, rtol=1e-7)

    def loss(x):
        return flex_attention(x, k.detach(), v.detach(), None, mask).sum()

    of_torch = torch.func.grad(lambda x: F.scaled_dot_product_attention(x, k.detach(), v.detach(), is_causal=True).sum())
    torch.testing.assert_close(torch.func.grad(loss)(q.detach()), of_torch(q.detach()), atol=1e-7, rtol=1e-7)
    mapped = torch.func.vmap(lambda x: flex_attention(x, k.detach(), v.detach(), None, mask))(q.detach()[None])[0]
    torch.testing.assert_close(mapped, flex_attention(q, k, v, None, mask).detach(), atol=1e-7, rtol=1e-7)
    with torch.autocast("cpu", torch.bfloat16):
        assert flex_attention(q.detach().float(), k.detach().float(), v.detach().float()).dtype == torch.bfloat16
    with forward_ad.dual_level():
        fails(NotImplementedError, lambda: flex_attention(forward_ad.make_dual(q.detach(), k.detach()), k.detach(), v.detach()))
    (gradient,) = torch.autograd.grad(flex_attention(q, k, v, alibi, mask).sum(), q, create_graph=True)
    fails(NotImplementedError, lambda: gradient.sum().backward())
    nested = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)], layout=torch.jagged)
    nested = nested.unflatten(-1, [2, 8]).transpose(1, 2)
    scaled_dot_product_attention(nested, nested, nested)
    print("all calls agree")


main()
