"""Calls that C++ makes from torch to the library (core/direct_calls.cc), and those that it leaves to Python."""

import copy
import gc
import sys

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from agreement import assert_agrees
from heddle.torch import _direct, create_block_mask, flex_attention, scaled_dot_product_attention
from heddle.torch._call import SETTINGS

L = 8
GENERATOR = torch.Generator().manual_seed(11)
Q, K, V = (torch.randn(1, 2, L, 8, generator=GENERATOR) for _ in range(3))


def test_block_masks_of_lists(walks):
    """torch's own block masks, which are made into the library's once for what they hold."""
    limit = 5

    def causal(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    def limited(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (kv_idx < limit)

    def dense(allowed):
        bias = torch.where(allowed, 0.0, -torch.inf).expand(1, 1, L, L)
        return torch.nn.functional.scaled_dot_product_attention(Q, K, V, bias)

    i = torch.arange(L)
    triangle = i[:, None] >= i
    mask = flex.create_block_mask(limited, None, None, L, L, "cpu", BLOCK_SIZE=4)
    for _ in range(2):
        torch.testing.assert_close(flex_attention(Q, K, V, block_mask=mask), dense(triangle & (i < 5)))
    limit = 3  # of partial blocks alone: the full one, queries 4 to 7 of keys 0 to 3, does not ask
    smaller = triangle & ((i < 3) | (i[:, None] >= 4) & (i < 4))
    for _ in range(2):
        torch.testing.assert_close(flex_attention(Q, K, V, block_mask=mask), dense(smaller))
    walks.mods = walks.calls = 0
    again = flex_attention(Q, K, V, block_mask=mask)
    assert (walks.mods, walks.calls) == (0, 0)
    torch.testing.assert_close(again, dense(smaller))

    mask.mask_mod = causal
    for _ in range(2):
        torch.testing.assert_close(flex_attention(Q, K, V, block_mask=mask), dense(triangle))
    mask.kv_num_blocks[0, 0, 1] = 1  # the second rows' blocks: the first listed alone
    first = mask.kv_indices[0, 0, 1, 0]
    allowed = triangle & ((i < 4)[:, None] | (i // 4 == first))
    if mask.full_kv_num_blocks is not None:
        mask.full_kv_num_blocks.zero_()
    for _ in range(2):
        torch.testing.assert_close(flex_attention(Q, K, V, block_mask=mask), dense(allowed))
    mask.kv_num_blocks = torch.zeros_like(mask.kv_num_blocks)
    for _ in range(2):
        assert torch.equal(flex_attention(Q, K, V, block_mask=mask), torch.zeros_like(Q))
    with pytest.raises((ValueError, RuntimeError), match="block_mask"):
        flex_attention(Q[:, :, :4], K, V, block_mask=mask)
    mask.seq_lengths = (4, L)
    with pytest.raises((ValueError, RuntimeError), match="block_mask"):
        flex_attention(Q, K, V, block_mask=mask)
    with pytest.raises(RuntimeError, match="sliced"):
        flex_attention(Q, K, V, block_mask=flex.create_block_mask(causal, None, None, L, L, "cpu")[0])


def test_inputs_of_other_kinds():
    """Calls that C++ leaves to Python, after one that it made."""
    flex_attention(Q, K, V)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (Q, K, V)]
    cases = {
        "strides": (strided, {}),
        "last stride": ([x.mT.contiguous().mT for x in (Q, K, V)], {}),
        "expanded": ([Q[:, :1].expand(1, 2, L, 8), K, V], {}),
        "wider values": ([Q, K, torch.cat([V, V], -1)], {}),
        "empty": ([Q[:, :, :0], K, V], {}),
        "f64": ([x.double() for x in (Q, K, V)], {}),
        "bf16": ([x.bfloat16() for x in (Q, K, V)], {}),
        "integer scale": ([Q, K, V], {"scale": 1}),
        "parameters": ([torch.nn.Parameter(x, requires_grad=False) for x in (Q, K, V)], {}),
    }
    for name, (tensors, options) in cases.items():
        out = assert_agrees(*tensors, **options) if name != "empty" else flex_attention(*tensors)
        assert out.shape == (*tensors[0].shape[:3], tensors[2].shape[3]) and type(out) is torch.Tensor, name
    order = sorted(range(3), key=lambda axis: -strided[0].stride(axis))
    out = flex_attention(*strided)
    assert sorted(range(3), key=lambda axis: -out.stride(axis)) == order


def test_no_setting_is_left_out():
    """A call with a setting is made with it, or left to Python."""
    def repeated(**settings):
        return _direct.attend(Q, K, V, None, None, settings, False, False, False)

    plain = flex_attention(Q, K, V)
    assert torch.equal(repeated()[0], plain)
    assert torch.equal(repeated(**dict.fromkeys([*SETTINGS, "sinks", "an_option_to_come"]))[0], plain)
    scaled = repeated(scale=2.0)[0]
    assert torch.equal(scaled, flex_attention(Q, K, V, scale=2.0)) and not torch.equal(scaled, plain)
    assert torch.equal(repeated(clamp_reads=True)[0], plain)
    # Counts without lengths are refused, which is Python's to say.
    for settings in ({"scale": 2}, {"max_q_len": 4}, {"max_kv_len": 4}, {"clamp_reads": 1}, {"sinks": Q[0, :, 0, 0]},
                     {"an_option_to_come": 1}):
        assert repeated(**settings) is None, settings


def test_a_block_mask_of_another_problem():
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx + h, 1, 2, L, L, "cpu")
    flex_attention(Q, K, V, block_mask=mask)
    for tensors in ([Q[:, :, :4], K, V], [Q, K[:, :, :4], V[:, :, :4]], [torch.cat([x, x], 1) for x in (Q, K, V)]):
        with pytest.raises((ValueError, RuntimeError), match="block_mask"):
            flex_attention(*tensors, block_mask=mask)
    twice = [torch.cat([x, x]) for x in (Q, K, V)]
    batched = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx + b, 2, 1, L, L, "cpu")
    flex_attention(*twice, block_mask=batched)
    with pytest.raises((ValueError, RuntimeError), match="batch size 2"):
        flex_attention(Q, K, V, block_mask=batched)
    got = flex_attention(twice[0], K, V, block_mask=batched)  # shared keys
    assert torch.equal(got, flex_attention(twice[0], *twice[1:], block_mask=batched))
    with pytest.raises((ValueError, RuntimeError), match="same batch size"):
        flex_attention(twice[0], K, V)


def test_a_dense_mask_that_does_not_fit():
    scaled_dot_product_attention(Q, K, V, torch.zeros(1, 1, L, L))
    for shape in ((1, 1, L, 2 * L), (2, 1, L, L), (1, 3, L, L), (1, 1, 2 * L, 1)):
        with pytest.raises(RuntimeError, match="broadcast"):
            scaled_dot_product_attention(Q, K, V, torch.zeros(shape))
    with pytest.raises(RuntimeError, match="int64"):
        scaled_dot_product_attention(Q, K, V, torch.zeros(1, 1, L, L, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="is_causal"):
        scaled_dot_product_attention(Q, K, V, torch.zeros(1, 1, L, L), is_causal=True)
    masks = [torch.randn(shape, generator=GENERATOR) for shape in ((1, 1, L, L), (1, 2, 1, L), (1, 1, L, 1))]
    for mask in [*masks, masks[0] > 0, masks[1].double(), masks[0].mT]:
        for _ in range(2):
            got = scaled_dot_product_attention(Q, K, V, mask)
            bias = torch.where(mask, 0.0, -torch.inf) if mask.dtype == torch.bool else mask.float()
            want = torch.nn.functional.scaled_dot_product_attention(Q, K, V, bias)
            torch.testing.assert_close(got, want)


def test_references_and_memory_stay_flat():
    values, mask_values = torch.linspace(0, 1, L), torch.arange(L)
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: mask_values[kv_idx] < 5, None, None, L, L, "cpu")
    objects = (Q, values, mask_values, mask)

    def call():
        flex_attention(Q, K, V, lambda score, b, h, q_idx, kv_idx: score + values[kv_idx], mask)
        scaled_dot_product_attention(Q, K, V, torch.zeros(1, 1, L, L))
        with pytest.raises(ValueError):
            flex_attention(Q, K[:, :, :, :4], V, lambda score, b, h, q_idx, kv_idx: score + values[kv_idx], mask)

    with torch.no_grad():
        for _ in range(50):
            call()
        gc.collect()
        before = [sys.getrefcount(x) for x in objects], len(gc.get_objects())
        for _ in range(2000):
            call()
        gc.collect()
        after = [sys.getrefcount(x) for x in objects], len(gc.get_objects())
    assert after[0] == before[0] and after[1] - before[1] < 100


def test_copies_of_a_block_mask():
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, L, L, "cpu")
    want = flex_attention(Q, K, V, block_mask=mask)
    assert torch.equal(flex_attention(Q, K, V, block_mask=copy.deepcopy(mask)), want)
    half = mask._adjust(4, 4)
    # Fewer queries are multiplied in another order.
    torch.testing.assert_close(
        flex_attention(*(x[:, :, :4] for x in (Q, K, V)), block_mask=half), want[:, :, :4], rtol=1e-5, atol=1e-6)


def test_kernel_options_are_no_other_call(walks):
    q = torch.randn(1, 2, 8, 8)
    want = flex_attention(q, q, q)
    for _ in range(3):
        assert torch.equal(flex_attention(q, q, q, kernel_options={"BLOCK_M": 32, "fwd_num_warps": 4}), want)
    assert walks.calls <= 2
    with pytest.raises(ValueError, match="Invalid BACKEND value 'other'"):
        flex_attention(q, q, q, kernel_options={"BACKEND": "other"})


def test_lists_written_in_place_are_read_again(walks):
    """torch's own block mask, whose lists repeated calls look at."""
    mask = flex.create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 64, 64, "cpu", BLOCK_SIZE=16)
    q = torch.randn(1, 1, 64, 8)
    for _ in range(3):
        before = flex_attention(q, q, q, block_mask=mask)
    assert walks.calls <= 2
    mask.kv_num_blocks.zero_()  # full blocks alone
    after = flex_attention(q, q, q, block_mask=mask)
    assert not torch.equal(before, after) and (after[:, :, :16] == 0).all()
    mask.full_kv_indices = mask.full_kv_indices.flip(-1)
    assert not torch.equal(flex_attention(q, q, q, block_mask=mask), after)
