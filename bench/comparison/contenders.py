"""Who is compared. Each contender is made for one cell's tensors; its call computes, its result() gives o and lse."""

import math

from comparison import library as c
from comparison.planned import Planned

CONTENDERS = ("heddle", "cudnn", "fa2", "flex", "fa4", "gemm")
MASKS = {False: None, True: b"q_idx >= kv_idx"}


class Inputs:
    """q, k, v of one cell: [B, S, H, D] memory, random normal."""

    def __init__(self, torch, cell, device, seed=0):
        self.torch, self.cell, self.device = torch, cell, device
        generator = torch.Generator(device=device).manual_seed(seed)
        self.q, self.k, self.v = (
            torch.randn(cell.batch, cell.s, cell.heads, cell.d, device=device, generator=generator).to(torch.bfloat16)
            for _ in range(3)
        )

    def bhsd(self):
        """The same memory as [B, H, S, D], which PyTorch's functions take."""
        return tuple(x.transpose(1, 2) for x in (self.q, self.k, self.v))


class Heddle(Planned):
    """The library through its C interface: a plan, run on PyTorch's memory and its current stream."""

    def __init__(self, inputs, library):
        torch, cell = inputs.torch, inputs.cell
        self.library, self.inputs = library, inputs
        self.o = torch.full_like(inputs.q, math.nan)
        self.lse = torch.full((cell.batch, cell.heads, cell.s), math.nan, device=inputs.device)
        attention = c.AttentionOptions(mask_mod=MASKS[cell.causal])
        super().__init__(library, torch, inputs.device, self.tensors_of(inputs, self.o, self.lse), attention)

    @staticmethod
    def view(x, device, heads_first=False):
        """[B, S, H, D] memory as the [B, H, S, D] view that attention takes."""
        x = x if heads_first else x.transpose(1, 2)
        dtype = {"torch.bfloat16": "bf16", "torch.float32": "f32"}[str(x.dtype)]
        return c.tensor(x.data_ptr(), dtype, x.shape, x.stride(), device, x.device.index or 0)

    @classmethod
    def tensors_of(cls, inputs, o, lse):
        device = "cpu" if inputs.device == "cpu" else "cuda"
        return c.attention_tensors(
            *(cls.view(x, device) for x in (inputs.q, inputs.k, inputs.v, o)), cls.view(lse, device, heads_first=True)
        )

    def result(self):
        return self.o.transpose(1, 2), self.lse


class OnTensors:
    """A function of PyTorch's on [B, H, S, D] tensors that gives (o, lse or None, ...)."""

    def __init__(self, function, inputs):
        self.function, self.inputs, self.kept = function, inputs.bhsd(), None

    def __call__(self):
        self.kept = self.function(*self.inputs)

    def result(self):
        o, lse = self.kept[:2]
        return o, lse


def with_squeezed_lse(results):
    """cuDNN's statistics have a fourth axis of extent 1 in some versions."""
    o, lse = results[:2]
    return o, lse.squeeze(-1) if lse is not None and lse.dim() == 4 else lse


def cudnn(inputs, _):
    attend, causal = inputs.torch.ops.aten._scaled_dot_product_cudnn_attention, inputs.cell.causal
    return OnTensors(lambda q, k, v: with_squeezed_lse(attend(q, k, v, None, True, 0.0, causal, False)), inputs)


def fa2(inputs, _):
    attend, causal = inputs.torch.ops.aten._scaled_dot_product_flash_attention, inputs.cell.causal
    return OnTensors(lambda q, k, v: attend(q, k, v, 0.0, causal, False), inputs)


def flex(inputs, shared):
    from torch.nn.attention import flex_attention as module

    torch, s = inputs.torch, inputs.cell.s
    if "flex" not in shared:
        torch._dynamo.config.recompile_limit = 1000
        torch._dynamo.config.automatic_dynamic_shapes = False
        shared["flex"] = torch.compile(module.flex_attention)
    attend = shared["flex"]
    mask = None
    if inputs.cell.causal:
        mask = module.create_block_mask(lambda b, h, q, k: q >= k, None, None, s, s, device=inputs.device)
    with_lse = {"return_lse": True}
    if hasattr(module, "AuxRequest"):
        with_lse = {"return_aux": module.AuxRequest(lse=True)}

    def call(q, k, v):
        o, extra = attend(q, k, v, block_mask=mask, **with_lse)
        return o, getattr(extra, "lse", extra)

    def call_without(q, k, v):
        return attend(q, k, v, block_mask=mask), None

    contender = OnTensors(call, inputs)
    try:
        contender()
    except Exception:  # lse is written where the peer can
        contender.function = call_without
    return contender


class Fa4:
    """Takes [B, S, H, D]."""

    def __init__(self, inputs, _):
        from flash_attn.cute.interface import flash_attn_func

        self.inputs, self.attend, self.kept = inputs, flash_attn_func, None
        self.extra = {"return_lse": True}

    def __call__(self):
        inputs = self.inputs
        try:
            self.kept = self.attend(inputs.q, inputs.k, inputs.v, causal=inputs.cell.causal, **self.extra)
        except TypeError:
            if not self.extra:
                raise
            self.extra = {}  # versions that always give lse, or never
            self()

    def result(self):
        o, lse = self.kept if isinstance(self.kept, tuple) else (self.kept, None)
        return o.transpose(1, 2), lse


class Gemm:
    """What the tensor cores reach on the plainest work: a square bf16 product."""

    def __init__(self, inputs, shared, size):
        torch = inputs.torch
        if "gemm" not in shared:
            shared["gemm"] = [torch.randn(size, size, device=inputs.device).to(torch.bfloat16) for _ in range(2)]
            shared["gemm"].append(torch.empty_like(shared["gemm"][0]))
        self.torch, self.operands, self.flops = torch, shared["gemm"], 2.0 * size**3

    def __call__(self):
        a, b, product = self.operands
        self.torch.mm(a, b, out=product)


def make(name, inputs, shared, library, gemm_size):
    """The contender of that name. `shared` keeps what outlives a cell."""
    if name == "heddle":
        return Heddle(inputs, library)
    if name == "gemm":
        return Gemm(inputs, shared, gemm_size)
    return {"cudnn": cudnn, "fa2": fa2, "flex": flex, "fa4": Fa4}[name](inputs, shared)
