"""Who does the same work as a mod of mods.py. A peer that cannot is left out; what it would do instead, a dense mask of
the window say, is other work."""

from comparison import contenders

NAMES = ("flex", "fa4", "fa2", "cudnn")
DROPPED = 0.1


class Unable(Exception):
    """The peer has no such mod."""


class Flex:
    def __init__(self, inputs, shared, score, mask):
        from torch.nn.attention import flex_attention as module

        torch, s = inputs.torch, inputs.cell.s
        if "flex" not in shared:
            torch._dynamo.config.recompile_limit = 1000
            torch._dynamo.config.automatic_dynamic_shapes = False
            shared["flex"] = torch.compile(module.flex_attention)
        self.attend, self.inputs = shared["flex"], inputs.bhsd()
        self.score = None if score is None else (lambda t, b, h, q, k: score(t, h, q, k))
        self.blocks = None
        if mask is not None:
            self.blocks = module.create_block_mask(
                lambda b, h, q, k: mask(q, k), None, None, s, s, device=inputs.device
            )

    def __call__(self):
        self.kept = self.attend(*self.inputs, score_mod=self.score, block_mask=self.blocks)

    def result(self):
        return self.kept, None


def fa4(inputs, captures, name):
    from comparison import mods_fa4

    if name not in mods_fa4.CALLS:
        raise Unable
    return mods_fa4.Fa4(inputs, captures, name)


def fa2(inputs, captures, name):
    attend = inputs.torch.ops.aten._scaled_dot_product_flash_attention
    if name not in ("causal", "dropout"):
        raise Unable
    dropped = DROPPED if name == "dropout" else 0.0
    return contenders.OnTensors(lambda q, k, v: attend(q, k, v, dropped, name == "causal", False), inputs)


def cudnn(inputs, captures, name):
    attend = inputs.torch.ops.aten._scaled_dot_product_cudnn_attention
    if name not in ("causal", "dropout", "bias, bf16"):
        raise Unable
    dropped = DROPPED if name == "dropout" else 0.0
    bias = captures["bias"].expand(inputs.cell.batch, -1, -1, -1) if name == "bias, bf16" else None

    def call(q, k, v):
        return contenders.with_squeezed_lse(attend(q, k, v, bias, True, dropped, name == "causal", False))

    return contenders.OnTensors(call, inputs)


def make(peer, inputs, shared, captures, name, score, mask):
    """The peer on one mod. Raises Unable, ImportError, or whatever it fails with."""
    if peer == "flex":
        if name == "dropout":
            raise Unable
        return Flex(inputs, shared, score, mask)
    return {"fa4": fa4, "fa2": fa2, "cudnn": cudnn}[peer](inputs, captures, name)
