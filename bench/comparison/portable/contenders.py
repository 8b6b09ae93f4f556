"""Who is compared: Heddle's portable family of the pass, and the backends of PyTorch's scaled_dot_product_attention."""

from comparison import mods
from comparison.backward import contenders as backward
from comparison.decode.contenders import family
from comparison.sdpa import Sdpa

FAMILIES = {"forward": "forward_mma", "backward": "backward_mma"}
# By their names in torch.nn.attention.SDPBackend. f32: FlashAttention takes none.
PEERS = {"fa2": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
PEERS_OF = {"bf16": ("fa2", "efficient"), "f32": ("efficient", "math"), "tf32": ("efficient", "math")}


class Inputs:
    """q, k, v and dO of a cell: [B, S, H, D] memory, random normal."""

    def __init__(self, torch, cell, device, seed=0):
        self.torch, self.cell, self.device = torch, cell, device
        generator = torch.Generator(device=device).manual_seed(seed)
        dtype = torch.bfloat16 if getattr(cell, "dtype", "bf16") == "bf16" else torch.float32
        shape = (cell.batch, cell.s, cell.heads, cell.d)
        self.q, self.k, self.v, self.d_o = (
            torch.randn(shape, device=device, generator=generator).to(dtype) for _ in range(4)
        )


def heddle(inputs, lib, of_pass, mod=None, captures=None, tf32=False):
    """Plans of the portable families alone; on a CPU of any."""
    names = FAMILIES if inputs.device != "cpu" else dict.fromkeys(FAMILIES, "")
    with family(names["forward"]):
        forward = mods.Heddle(inputs, lib, mod, captures, allow_tf32=int(tf32))
    if of_pass == "forward":
        return forward
    with family(names["backward"]):
        return backward.Heddle(inputs, lib, forward=forward)


def peer(name, inputs):
    cell = inputs.cell
    q, k, v, d_o = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v, inputs.d_o))
    return Sdpa(inputs.torch, PEERS[name], q, k, v, cell.causal, d_o if cell.backward else None)
