"""torch.utils.flop_counter counts attention as it counts torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from heddle.torch import create_block_mask, enabled, flex_attention, varlen_attn


def flops_of(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def inputs(dim_v=8):
    return [torch.randn(2, 4, 9, dim, requires_grad=True) for dim in (8, 8, dim_v)]


@pytest.mark.parametrize("dim_v", [8, 16])
def test_forward_and_backward(dim_v):
    q, k, v = inputs(dim_v)
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 9, 9, "cpu")
    forward = 2 * 2 * 4 * 9 * 9 * (8 + dim_v)
    backward = 2 * 2 * 4 * 9 * 9 * (3 * 8 + 2 * dim_v)
    for _ in range(2):
        assert flops_of(lambda: flex_attention(q, k, v)) == forward
        assert flops_of(lambda: flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score * 2, mask)) == forward
        assert flops_of(lambda: flex_attention(q, k, v).sum().backward()) == forward + backward


def test_as_torch_counts_its_own():
    q, k, v = inputs()
    def call():
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        of_torch = flops_of(call)
    with enabled():
        of_heddle = flops_of(call)
    # torch's CPU kernel has no formula; its GPU's are those of the test above.
    assert of_heddle > 0 and of_torch in (0, of_heddle)


def test_packed_and_paged():
    q, k, v = (torch.randn(12, 2, 8) for _ in range(3))
    starts, used = torch.tensor([0, 2, 5, 12], dtype=torch.int32), torch.tensor([1, 3, 4], dtype=torch.int32)
    squares = 2**2 + 3**2 + 7**2
    assert flops_of(lambda: varlen_attn(q, q, q, starts, starts, 7, 7)) == 2 * 2 * squares * 16
    assert flops_of(lambda: varlen_attn(q, k, v, starts, starts, 7, 7, seqused_k=used)) == 2 * 2 * (2 * 1 + 3 * 3 + 7 * 4) * 16
    pages, table = torch.randn(4, 4, 2, 8), torch.tensor([[0, 1], [1, 2], [3, 2]], dtype=torch.int32)
    assert flops_of(lambda: varlen_attn(q, pages, pages, starts, None, 7, 8, seqused_k=used, block_table=table)) == (
        2 * 2 * (2 * 1 + 3 * 3 + 7 * 4) * 16)


def test_lengths_that_nobody_knows():
    with torch._subclasses.FakeTensorMode():
        q, starts = torch.randn(12, 2, 8), torch.zeros(4, dtype=torch.int32)
        assert flops_of(lambda: varlen_attn(q, q, q, starts, starts, 7, 7)) == 2 * 2 * 3 * 7 * 7 * 16
