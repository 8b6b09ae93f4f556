"""merge_states of torch's tensors, and its gradients."""

import pytest
import torch

import heddle.torch
from heddle.torch import AuxRequest, flex_attention, merge_states


def parts_of(q, k, v, edges):
    for first, last in zip(edges, edges[1:]):
        out, aux = flex_attention(q, k[:, :, first:last], v[:, :, first:last], return_aux=AuxRequest(lse=True))
        yield out, aux.lse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parts_are_the_whole(dtype):
    q, k, v = (torch.randn(2, 3, 20, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    out, lse = merge_states(*zip(*parts_of(q, k, v, [0, 3, 11, 20])))
    want, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=True))
    tolerance = {"atol": 3e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {"atol": 2e-6, "rtol": 1e-5}
    torch.testing.assert_close(out, want, **tolerance)
    torch.testing.assert_close(lse, aux.lse, atol=2e-6, rtol=1e-5)
    d_out, d_lse = torch.randn_like(out), torch.randn_like(lse)
    got = torch.autograd.grad((out, lse), (q, k, v), (d_out, d_lse))
    for one, other in zip(got, torch.autograd.grad((want, aux.lse), (q, k, v), (d_out, d_lse))):
        torch.testing.assert_close(one, other, atol=10 * tolerance["atol"], rtol=10 * tolerance["rtol"])


def test_gradients_in_f64():
    o = [torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    lse = [torch.randn(2, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *x: merge_states(x[:3], x[3:]), (*o, *lse))


def test_rows_without_keys():
    o = torch.zeros(2, 4, 3, requires_grad=True)
    lse = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1e30]] * 2, requires_grad=True)
    other = torch.full((2, 4), -torch.inf, requires_grad=True)
    out, merged = merge_states([o, o + 1], [lse, other])
    assert torch.equal(out, o) and torch.equal(merged, lse)
    for gradient in torch.autograd.grad(out.sum() + merged[:, 1::2].sum(), (o, lse, other)):
        assert gradient.isfinite().all()


def test_refusals():
    o, lse = torch.zeros(2, 4, 3), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="o_parts has 2 tensors and lse_parts 1"):
        merge_states([o, o], [lse])
    with pytest.raises(ValueError, match="o_parts has 0 tensors"):
        merge_states([], [])
    with pytest.raises(ValueError, match=r"lse_parts\[1\] \[4, 2\]; \[2, 4, 3\] and \[2, 4\] are accepted"):
        merge_states([o, o], [lse, lse.T])
    assert heddle.torch.merge_states is merge_states


def test_parts_in_one_tensor():
    q, k, v = torch.randn(3, 1, 2, 16, 8)
    o, lse = zip(*parts_of(q, k, v, (0, 4, 16)))
    torch.testing.assert_close(merge_states(torch.stack(o), torch.stack(lse)), merge_states(o, lse))
