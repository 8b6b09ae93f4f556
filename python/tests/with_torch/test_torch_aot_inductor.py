"""AOTInductor: a package that torch._inductor.aoti_compile_and_package made gives what the model gives."""

import os
import shutil

import pytest
import torch
from torch.export import Dim

from heddle import mods
from heddle.torch import create_block_mask, flex_attention, scaled_dot_product_attention, varlen_attn

pytestmark = [
    pytest.mark.skipif(not os.environ.get("HEDDLE_TEST_FULL"), reason="HEDDLE_TEST_FULL is not set: a package takes 9 s to compile"),
    pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++, which torch compiles a package with"),
]
torch.manual_seed(5)
BIAS = torch.randn(4, 40)
LENGTH = Dim("length", min=2, max=4096)


def plain(q, k, v):
    return flex_attention(q, k, v)


def dynamic(q, k, v):
    """Params, captures and a block mask of lengths that vary."""
    length = q.shape[2]
    mask = create_block_mask(mods.causal_lower_right(), None, None, length, length, "cpu")
    return flex_attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + (kv_idx - q_idx) / length + BIAS[h, kv_idx], mask)


def masked(q, k, v, mask):
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def packed(q, k, v, starts):
    return varlen_attn(q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), starts, starts, 16, 16)


def tensors(length):
    return tuple(torch.randn(2, 4, length, 8) for _ in range(3))


PACKED = [torch.tensor([0, n, 16], dtype=torch.int32) for n in (5, 9)]
CASES = {
    "plain": (plain, None, [tensors(16)]),
    "dynamic": (dynamic, ({2: LENGTH},) * 3, [tensors(16), tensors(33)]),
    "masked": (masked, None, [(*tensors(16), torch.rand(16, 16) > 0.3) for _ in range(2)]),
    "packed": (packed, None, [(*tensors(16), starts) for starts in PACKED]),
}


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given) + 1


@pytest.mark.parametrize("name", CASES)
def test_a_package_gives_what_the_model_gives(name, tmp_path):
    function, shapes, calls = CASES[name]
    model = Model(function)
    program = torch.export.export(model, calls[0], dynamic_shapes=None if shapes is None else (shapes,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    package = torch._inductor.aoti_load_package(path)
    for given in calls:
        torch.testing.assert_close(package(*given), model(*given))
