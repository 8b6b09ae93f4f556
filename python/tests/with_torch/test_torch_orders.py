"""max and min of an axis, argmax, sort, topk and median of a few elements in a mod, NaN and equal elements among them."""

import pytest
import torch

from heddle.torch import flex_attention

NAN = float("nan")
ROWS = torch.tensor([[0.5, -1.0, 2.0, 2.0], [NAN, 1.0, 3.0, -2.0], [1.0, 1.0, 1.0, 1.0], [-0.5, 4.0, NAN, NAN], [3.0, 2.0, 1.0, 0.0],
                     [float("-inf"), 0.0, float("inf"), 0.0]])
COUNTS = torch.tensor([[3, 1, 2, 2], [0, 0, 5, -1], [7, 7, 1, 0], [-3, 2, -3, 9], [1, 2, 3, 4], [4, 3, 2, 1]])
ONE = torch.tensor([[2.0]])

TEXTS = [
    "x[k].argmax()", "x[k].argmin()", "x[k].max(0).values", "x[k].max(0).indices", "x[k].min(dim=0).values", "torch.min(x[k], 0).indices",
    "x[k].argmax(0, keepdim=True)[0]", "x[k].view(2, 2).max(1, keepdim=True).values[1, 0]", "x[k].view(2, 2).argmax()", "x[k].max()",
    "x[k].sort().values[1]", "x[k].sort(descending=True).values[2]", "torch.sort(x[k], dim=0, stable=True).indices[3]",
    "x[k].argsort(stable=True)[0]", "x[k].view(2, 2).sort(0)[0][1, 1]", "torch.msort(x[k])[2]", "x[k].topk(2)[0][1]",
    "x[k].topk(3, largest=False)[0][2]", "x[k].kthvalue(2)[0]", "x[k].median()", "x[k].median(0).values", "x[k].view(2, 2).median(0).values[1]",
    "x[k][x[k].argmax()]", "(x[k] * 2 + q).sort()[0][q % 4]", "ONE[0].sort()[0][0]", "ONE[0, 0].argmax()",
]


@pytest.mark.parametrize("x", [ROWS, COUNTS], ids=["reals", "integers"])
@pytest.mark.parametrize("text", TEXTS)
def test_values(text, x):
    read = eval(f"lambda q, k: {text}", {"x": x, "ONE": ONE, "torch": torch})
    wanted = torch.stack([torch.stack([read(torch.tensor(q), torch.tensor(k)).float() for k in range(6)]) for q in range(6)])

    def mod(score, b, h, q, k):
        found, expected = read(q, k), wanted[q, k]
        return torch.where((found == expected) | ((found != found) & (expected != expected)), score, score - 30)

    zeros = torch.zeros(1, 1, 6, 8)
    o = flex_attention(zeros, zeros, torch.eye(6)[None, None], score_mod=mod)
    torch.testing.assert_close(o, torch.full((1, 1, 6, 6), 1 / 6))


@pytest.mark.parametrize("order", [lambda x: x.max(-1).values, lambda x: x.sort(-1).values[..., 1], lambda x: x.median(-1).values])
def test_gradients(order):
    q, k, v = (torch.randn(1, 1, 6, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    x, other = (torch.randn(6, 4, generator=torch.Generator().manual_seed(3)).requires_grad_() for _ in range(2))
    flex_attention(q, k, v, score_mod=lambda s, b, h, q, k: s + order(x[k])).square().sum().backward()
    torch.nn.functional.scaled_dot_product_attention(q, k, v, order(other).expand(6, 6)).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("count", [16, 40])
def test_orders_of_captured_tensors(count):
    table = torch.randn(count, generator=torch.Generator().manual_seed(0))
    q = torch.randn(1, 1, 6, 8, generator=torch.Generator().manual_seed(1))
    o = flex_attention(q, q, q, score_mod=lambda s, b, h, q, k: s + table.sort()[0][k] + table.max() * k + table.argmax() * q * k)
    j = torch.arange(6)
    bias = table.sort()[0][:6] + table.max() * j + table.argmax() * j[:, None] * j
    torch.testing.assert_close(o, torch.nn.functional.scaled_dot_product_attention(q, q, q, bias), atol=1e-5, rtol=1e-5)


def test_long_orders_are_refused_by_name():
    q, rows = torch.zeros(1, 1, 4, 8), torch.zeros(4, 17)
    with pytest.raises(NotImplementedError, match="an order of 17 elements for each score; 1 to 16 are unrolled"):
        flex_attention(q, q, q, score_mod=lambda s, b, h, q, k: s + rows[k].sort()[0][0])
