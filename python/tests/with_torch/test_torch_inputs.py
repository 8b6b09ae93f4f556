"""Inputs of torch: captures at odd addresses, integers of 64 bits, keys of another type than queries."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention as torchs

from heddle.torch import create_block_mask, flex_attention, scaled_dot_product_attention

torch.manual_seed(0)
Q, K, V = torch.randn(3, 2, 2, 12, 8).unbind()


def odd(x):
    """The same values one byte behind an aligned address."""
    memory = bytearray(x.numel() * x.element_size() + 1)
    made = torch.frombuffer(memoryview(memory)[1:], dtype=x.dtype).view(x.shape)
    made.copy_(x)
    assert made.data_ptr() % x.element_size()
    return made


def alibi(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


def test_captures_at_odd_addresses():
    slopes, ids = torch.rand(2), torch.arange(12) // 5
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx], None, None, 12, 12, "cpu")
    want = flex_attention(Q, K, V, alibi(slopes), mask)
    far, places = odd(slopes), odd(ids)
    at_odd = create_block_mask(lambda b, h, q_idx, kv_idx: places[q_idx] == places[kv_idx], None, None, 12, 12, "cpu")
    assert torch.equal(at_odd.to_dense(), mask.to_dense())
    for _ in range(3):  # traced, then repeated in C++
        assert torch.equal(flex_attention(Q, K, V, alibi(far), at_odd), want)
    far.mul_(2)  # each call reads the present content
    assert torch.equal(flex_attention(Q, K, V, alibi(far), at_odd), flex_attention(Q, K, V, alibi(2 * slopes), mask))


def test_gradients_at_odd_addresses():
    far, near = odd(torch.rand(2)), None
    near = far.clone().requires_grad_()
    far.requires_grad_()
    for slopes in (near, far):
        flex_attention(Q, K, V, alibi(slopes)).square().sum().backward()
    assert torch.equal(far.grad, near.grad)


def test_queries_and_keys_at_odd_addresses():
    want = flex_attention(Q, K, V)
    for _ in range(2):
        assert torch.equal(flex_attention(odd(Q), odd(K), odd(V)), want)
    assert torch.equal(scaled_dot_product_attention(odd(Q), K, odd(V)), scaled_dot_product_attention(Q, K, V))
    query = odd(Q).requires_grad_()
    flex_attention(query, K, V).sum().backward()
    near = Q.clone().requires_grad_()
    flex_attention(near, K, V).sum().backward()
    assert torch.equal(query.grad, near.grad)


@pytest.mark.parametrize("mark", [2**31, 2**63 - 1, -(2**40)])
def test_wide_integers_are_refused(mark):
    limit = torch.tensor([12, mark])
    score = lambda score, b, h, q_idx, kv_idx: torch.where(kv_idx < limit[b], score, -float("inf"))  # noqa: E731
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"capture 'limit' is i64 and holds {mark} at \[1\]"):
            flex_attention(Q, K, V, score)
    limit[1] = 12  # what the same function reads now
    assert torch.allclose(flex_attention(Q, K, V, score), flex_attention(Q, K, V))
    limit[1] = mark
    with pytest.raises(ValueError, match="capture 'limit'"):
        flex_attention(Q, K, V, score)


TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]


@pytest.mark.parametrize("of_keys", TYPES, ids=str)
@pytest.mark.parametrize("of_query", TYPES[:4], ids=str)
def test_types_that_differ(of_query, of_keys):
    """As near to the result in float64 as the query's type allows: no operand is rounded to it."""
    if of_query == of_keys:
        pytest.skip("one type")
    query, key, value = Q.to(of_query), (4 * K).to(of_keys), V.to(of_keys)
    got = flex_attention(query, key, value)
    assert got.dtype == of_query
    exact = torchs(query.double(), key.double(), value.double())
    rounding = {torch.float16: 2**-11, torch.bfloat16: 2**-8}.get(of_query, 2e-6)
    torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=rounding)


def test_gradients_of_types_that_differ():
    query, key = Q.half().requires_grad_(), K.clone().requires_grad_()
    flex_attention(query, key, V).square().sum().backward()
    exact_query, exact_key = (x.detach().double().requires_grad_() for x in (query, key))
    weights = (exact_query @ exact_key.transpose(-1, -2) * Q.shape[-1] ** -0.5).softmax(-1)
    (weights @ V.double()).square().sum().backward()
    assert query.grad.dtype == torch.float16 and key.grad.dtype == torch.float32
    torch.testing.assert_close(query.grad.double(), exact_query.grad, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(key.grad.double(), exact_key.grad, rtol=4e-3, atol=4e-3)
