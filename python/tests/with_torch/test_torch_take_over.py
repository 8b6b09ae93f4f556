"""Unmodified code on heddle."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention import activate_flash_attention_impl, list_flash_attention_impls, restore_flash_attention_impl
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import AuxRequest, varlen_attn

import heddle.torch

flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
q = torch.randn(2, 4, 33, 16)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def double(score, b, h, q_idx, kv_idx):
    return score * 2


@pytest.fixture(autouse=True)
def fresh():
    heddle.torch.clear_log()
    yield
    assert torch.nn.functional.scaled_dot_product_attention is heddle.torch._take_over.torchs_sdpa


def went(function):
    return {entry.where: entry.count for entry in heddle.torch.log() if entry.function == function}


def test_names_imported_before_are_reached():
    want = flex_attention(q, q, q, double, create_block_mask(causal, None, None, 33, 33, "cpu"))
    with heddle.torch.enabled():
        mask = create_block_mask(causal, None, None, 33, 33, "cpu", _compile=True)
        got = flex_attention(q, q, q, double, mask)
    assert isinstance(mask, heddle.torch.BlockMask)
    torch.testing.assert_close(got, want)
    assert went("flex_attention") == {"heddle": 1} and went("create_block_mask") == {"heddle": 1}
    assert not isinstance(create_block_mask(causal, None, None, 33, 33, "cpu"), heddle.torch.BlockMask)
    torch.testing.assert_close(flex_attention(q, q, q, double, mask), want)
    assert went("flex_attention") == {"heddle": 1}


def test_a_module_of_torchs():
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 5, 16)
    want = module(x, x, x, need_weights=False)[0]
    with heddle.torch.enabled():
        with torch.no_grad():
            got = module(x, x, x, need_weights=False)[0]
        module(x, x, x, need_weights=False)[0].sum().backward()
    torch.testing.assert_close(got, want.detach())
    assert went("scaled_dot_product_attention") == {"heddle": 1, "torch: an input requires a gradient": 1}


def test_what_heddle_lacks_goes_to_torch():
    def sorts(score, b, h, q_idx, kv_idx):
        return score + torch.sort(torch.stack([q_idx, kv_idx]))[0][1]

    want = flex_attention(q, q, q, sorts)
    with heddle.torch.enabled():
        torch.testing.assert_close(flex_attention(q, q, q, sorts), want)
    (reason, count), = went("flex_attention").items()
    assert reason.startswith("torch: sort has no expression") and count == 1


def test_an_error_of_the_user_is_no_fallback():
    with heddle.torch.enabled(), pytest.raises(ValueError, match="embedding dimension"):
        flex_attention(q, q[..., :8], q)


def test_compiled():
    with heddle.torch.enabled():
        torch._dynamo.reset()
        fast = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
        got = fast(q, q, q, double)
    torch._dynamo.reset()
    torch.testing.assert_close(got, heddle.torch.flex_attention(q, q, q, double))


def test_nested():
    heddle.torch.activate()
    with heddle.torch.enabled():
        pass
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    heddle.torch.deactivate()
    assert went("scaled_dot_product_attention") == {"heddle": 1}
    with pytest.raises(RuntimeError, match="without activate"):
        heddle.torch.deactivate()


def test_flash_attention_implementation():
    assert "heddle" in list_flash_attention_impls()
    starts = torch.tensor([0, 4, 10], dtype=torch.int32)
    x = torch.randn(10, 2, 8)
    activate_flash_attention_impl("heddle")
    try:
        out, lse = varlen_attn(x, x, x, starts, starts, 6, 6, window_size=(2, 0), return_aux=AuxRequest(lse=True))
        sdpa = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, True)
    finally:
        restore_flash_attention_impl()
    torch.testing.assert_close(out, heddle.torch.varlen_attn(x, x, x, starts, starts, 6, 6, window_size=(2, 0)))
    assert lse.shape == (2, 10)
    torch.testing.assert_close(sdpa[0], torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    with pytest.raises(NotImplementedError):
        torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, True)
