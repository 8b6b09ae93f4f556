"""Who is compared. Each contender is made for one cell's tensors and runs its own forward once; its call computes the
gradients, without autograd where the peer has a function for that. stored() gives the o and lse that it started from,
result() dq, dk and dv, all as [B, H, S, D]; `captures` has gradients of captures by name.

A name that ends in "-det" is the same contender in its deterministic mode.
"""

import contextlib
import math

from comparison import library as c, mod_rows, mods
from comparison.planned import Planned

PEERS = ("cudnn", "fa2", "flex", "fa4")
DETERMINISTIC = "-det"
# flex_attention adds nothing by atomics: it has one mode.
WITH_MODES = ("heddle", "cudnn", "fa2", "fa4")


class Inputs:
    """q, k, v, dO of one cell: [B, S, H, D] memory, random normal, bf16."""

    def __init__(self, torch, cell, device, seed=0):
        self.torch, self.cell, self.device = torch, cell, device
        generator = torch.Generator(device=device).manual_seed(seed)
        kv_heads = getattr(cell, "kv_heads", cell.heads)
        self.q, self.k, self.v, self.d_o = (
            torch.randn(cell.batch, cell.s, heads, cell.d, device=device, generator=generator).to(torch.bfloat16)
            for heads in (cell.heads, kv_heads, kv_heads, cell.heads)
        )

    def bhsd(self):
        """The same memory as [B, H, S, D], which PyTorch's functions take."""
        return tuple(x.transpose(1, 2) for x in (self.q, self.k, self.v, self.d_o))


class Heddle(Planned):
    """The library through its C interface: a plan, run on PyTorch's memory and its current stream. `captures`: tensors
    by name; `gradients`: the names of those whose gradients it computes too. `forward`: one of these inputs, with its
    mod, captures and options; else it is planned here."""

    def __init__(self, inputs, lib, mod=None, captures=None, gradients=(), deterministic=False, forward=None):
        torch = inputs.torch
        self.forward = forward or mods.Heddle(inputs, lib, mod, captures)
        self.forward()
        self.gradients = [torch.full_like(x, math.nan) for x in (inputs.q, inputs.k, inputs.v)]
        self.captures = {name: torch.full_like(captures[name], math.nan) for name in gradients}
        views = {
            name: mods.view(x.transpose(1, 2))
            for name, x in zip(("q", "k", "v", "d_o"), (inputs.q, inputs.k, inputs.v, inputs.d_o))
        }
        views |= {"o": mods.view(self.forward.o.transpose(1, 2)), "lse": mods.view(self.forward.lse)}
        views |= {name: mods.view(x.transpose(1, 2)) for name, x in zip(("dq", "dk", "dv"), self.gradients)}
        tensors = c.backward_tensors(views, {name: mods.view(x) for name, x in self.captures.items()})
        attention = c.AttentionOptions.from_buffer_copy(self.forward.attention)
        attention.deterministic = deterministic
        super().__init__(lib, torch, inputs.device, tensors, attention)

    def stored(self):
        return self.forward.result()

    def result(self):
        return tuple(x.transpose(1, 2) for x in self.gradients)


class OnTensors:
    """A backward of PyTorch's. `forward` takes q, k, v [B, H, S, D] and gives (o, lse, ...); `backward` takes dO, q, k,
    v and what the forward gave."""

    def __init__(self, inputs, forward, backward):
        q, k, v, d_o = inputs.bhsd()
        self.kept = forward(q, k, v)
        self.arguments, self.backward, self.captures = (d_o, q, k, v, self.kept), backward, {}

    def __call__(self):
        self.gradients = self.backward(*self.arguments)

    def stored(self):
        o, lse = self.kept[:2]
        return o, lse.squeeze(-1) if lse.dim() == 4 else lse

    def result(self):
        return self.gradients[:3]


@contextlib.contextmanager
def determinism(torch, wanted):
    """PyTorch's switch. It also fills new memory, which is no part of an attention: that stays off."""
    if not wanted:
        yield
        return
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled


def cudnn(inputs, causal, dropped=0.0, bias=None, deterministic=False):
    torch, aten = inputs.torch, inputs.torch.ops.aten
    attend, differentiate = (
        aten._scaled_dot_product_cudnn_attention,
        aten._scaled_dot_product_cudnn_attention_backward,
    )

    def backward(d_o, q, k, v, kept):
        o, lse, q_starts, k_starts, q_most, k_most, seed, offset, _ = kept
        with determinism(torch, deterministic):
            return differentiate(
                d_o, q, k, v, o, lse, seed, offset, bias, q_starts, k_starts, q_most, k_most, dropped, causal
            )

    return OnTensors(inputs, lambda q, k, v: attend(q, k, v, bias, True, dropped, causal, False), backward)


def fa2(inputs, causal, dropped=0.0, deterministic=False):
    torch, aten = inputs.torch, inputs.torch.ops.aten
    if inputs.device == "cpu":  # to try the program out
        return OnTensors(
            inputs,
            lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropped, causal),
            lambda d_o, q, k, v, kept: aten._scaled_dot_product_flash_attention_for_cpu_backward(
                d_o, q, k, v, *kept, dropped, causal
            ),
        )
    attend, differentiate = (
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_flash_attention_backward,
    )

    def backward(d_o, q, k, v, kept):
        o, lse, q_starts, k_starts, q_most, k_most, state, unused, _ = kept
        with determinism(torch, deterministic):
            return differentiate(
                d_o, q, k, v, o, lse, q_starts, k_starts, q_most, k_most, dropped, causal, state, unused
            )

    return OnTensors(inputs, lambda q, k, v: attend(q, k, v, dropped, causal, False), backward)


class Flex:
    """flex_attention has no function for its backward alone: autograd's engine calls the compiled kernels. What that
    costs the host is waited for before the clock starts (timing.py). score(t, h, q, k) and mask(q, k) may be None;
    `captures`: by name, those whose gradients it computes too."""

    def __init__(self, inputs, shared, score, mask, captures=None):
        from torch.nn.attention import flex_attention as module

        torch, s = inputs.torch, inputs.cell.s
        if "flex" not in shared:
            import torch._functorch.config

            torch._functorch.config.donated_buffer = False  # the graph is kept for every call
            torch._dynamo.config.recompile_limit = 1000
            torch._dynamo.config.automatic_dynamic_shapes = False
            shared["flex"] = torch.compile(module.flex_attention)
        self.torch = torch
        q, k, v, self.d_o = inputs.bhsd()
        self.wanted = [x.detach().requires_grad_() for x in (q, k, v)] + list((captures or {}).values())
        self.names = tuple(captures or ())
        mod = None if score is None else (lambda t, b, h, i, j: score(t, h, i, j))
        blocks = None
        if mask is not None:
            blocks = module.create_block_mask(lambda b, h, i, j: mask(i, j), None, None, s, s, device=inputs.device)
        options = {"score_mod": mod, "block_mask": blocks, "enable_gqa": q.shape[1] != k.shape[1]}
        with_lse = {"return_lse": True}
        if hasattr(module, "AuxRequest"):
            with_lse = {"return_aux": module.AuxRequest(lse=True)}
        with torch.enable_grad():
            self.o, extra = shared["flex"](*self.wanted[:3], **options, **with_lse)
        self.lse = getattr(extra, "lse", extra).detach()

    def __call__(self):
        self.gradients = self.torch.autograd.grad(self.o, self.wanted, self.d_o, retain_graph=True)

    @property
    def captures(self):
        return dict(zip(self.names, self.gradients[3:]))

    def stored(self):
        return self.o.detach(), self.lse

    def result(self):
        return self.gradients[:3]


class Fa4:
    """The kernels that FlashAttention-4's autograd function calls. Takes [B, S, H, D]. `options`: of its forward;
    `backward`: of its backward."""

    def __init__(self, inputs, options, backward):
        from flash_attn.cute.interface import _flash_attn_bwd, flash_attn_func

        self.inputs, self.differentiate, self.options, self.captures = inputs, _flash_attn_bwd, backward, {}
        self.o, self.lse = flash_attn_func(inputs.q, inputs.k, inputs.v, return_lse=True, **options)[:2]

    def __call__(self):
        x = self.inputs
        self.gradients = self.differentiate(x.q, x.k, x.v, self.o, x.d_o, self.lse, **self.options)

    def stored(self):
        return self.o.transpose(1, 2), self.lse

    def result(self):
        return tuple(x.transpose(1, 2) for x in self.gradients[:3])


def causal_mask(q, k):
    return q >= k


def make(name, inputs, shared, lib):
    """The contender of that name on a cell. `shared` keeps what outlives it."""
    causal = inputs.cell.causal
    deterministic = name.endswith(DETERMINISTIC)
    name = name.removesuffix(DETERMINISTIC)
    if name == "heddle":
        mask = next(mod for mod in mod_rows.MODS if mod.name == "causal") if causal else None
        return Heddle(inputs, lib, mask, deterministic=deterministic)
    if name == "flex":
        return Flex(inputs, shared, None, causal_mask if causal else None)
    if name == "fa4":
        return Fa4(inputs, {"causal": causal}, {"causal": causal, "deterministic": deterministic})
    return {"cudnn": cudnn, "fa2": fa2}[name](inputs, causal, deterministic=deterministic)
