"""Functions of captured tensors inside a mod that no score and no index reaches: torch computes those that have no
expression, and reductions of many elements. Autograd's gradients go through them."""

import pytest
import torch
from gradient_reference import assert_gradients, dense, qkv, random
from torch.nn import functional

import heddle.torch
from heddle.torch import create_mask, flex_attention

SIZE = 9
table, row = random(SIZE, SIZE, seed=11), random(SIZE, seed=12)
OF_CAPTURES = {
    "chunk": lambda s, b, h, q_idx, kv_idx: s + table.chunk(3)[1][q_idx // 4, kv_idx],
    "split": lambda s, b, h, q_idx, kv_idx: s + table.split([4, 5], 1)[1][q_idx, kv_idx // 2],
    "unfold": lambda s, b, h, q_idx, kv_idx: s + row.unfold(0, 3, 1)[q_idx // 3, kv_idx // 3],
    "softmax": lambda s, b, h, q_idx, kv_idx: s + table.exp().softmax(-1)[q_idx, kv_idx],
    "sort": lambda s, b, h, q_idx, kv_idx: s + table.sort()[0][q_idx, kv_idx],
    "topk": lambda s, b, h, q_idx, kv_idx: s + table.topk(3)[0][q_idx, kv_idx // 3],
    "argmax": lambda s, b, h, q_idx, kv_idx: s + 0.1 * table.argmax(),
    "inverse": lambda s, b, h, q_idx, kv_idx: s + 0.1 * torch.linalg.inv(table)[q_idx, kv_idx],
    "sum": lambda s, b, h, q_idx, kv_idx: s + table.sum(0)[kv_idx],
    "bools": lambda s, b, h, q_idx, kv_idx: s + table[table > -100.0][SIZE * q_idx + kv_idx],
    "convolution": lambda s, b, h, q_idx, kv_idx: s + functional.conv1d(
        row[None, None], torch.ones(1, 1, 3, dtype=torch.float64), padding=1)[0, 0, q_idx],
}


@pytest.mark.parametrize("name", OF_CAPTURES)
def test_torch_computes_what_has_no_expression(name):
    q, k, v = qkv(q_len=SIZE, kv_len=SIZE)
    mod = OF_CAPTURES[name]
    assert_gradients(lambda: flex_attention(q, k, v, mod, return_lse=True), lambda: dense(q, k, v, mod),
                     [q, k, v, table, row], 1e-6)  # torch's mods compute some terms in f32


def test_later_contents_are_read():
    numbers = torch.arange(6.0)

    def mod(score, b, h, q_idx, kv_idx):
        return score * 0 + numbers.flip(0).cumsum(0).sort(descending=True)[0][kv_idx]

    q = torch.ones(1, 1, 6, 4)
    for factor in (1.0, -2.0, 0.5):
        numbers.mul_(factor)
        want = torch.softmax(numbers.flip(0).cumsum(0).sort(descending=True)[0], 0) @ q[0, 0].cumsum(0)
        torch.testing.assert_close(flex_attention(q, q, q.cumsum(2), mod)[0, 0, 3], want)


def test_no_random_numbers():
    def random_table(score, b, h, q_idx, kv_idx):
        return score + torch.rand_like(table)[q_idx, kv_idx]

    q, k, v = qkv(q_len=SIZE, kv_len=SIZE)
    with pytest.raises(NotImplementedError, match="rand_like has no expression") as refused:
        flex_attention(q, k, v, random_table)
    assert type(refused.value) is NotImplementedError
    with pytest.raises(NotImplementedError, match="cummax has no expression"):
        flex_attention(q, k, v, lambda s, b, h, q_idx, kv_idx: table[q_idx].cummax(0)[0][kv_idx])


@pytest.mark.parametrize("mod", [
    lambda s, b, h, q_idx, kv_idx: s.to(torch.complex64),
    lambda s, b, h, q_idx, kv_idx: torch.complex(s, s).abs(),
])
def test_no_complex_numbers(mod):
    q, k, v = qkv()
    with pytest.raises(NotImplementedError, match="complex64: mods compute with real numbers"):
        flex_attention(q, k, v, mod)


SIGNS = torch.tensor([0.0, -0.0, 1.0, -1.0, -torch.inf])


@pytest.mark.parametrize("mod", [
    lambda s, b, h, q_idx, kv_idx: torch.copysign(s, SIGNS[kv_idx]),
    lambda s, b, h, q_idx, kv_idx: torch.copysign(s, q_idx - kv_idx),
    lambda s, b, h, q_idx, kv_idx: torch.where(torch.signbit(SIGNS[kv_idx]), s, 2 * s),
])
def test_signs(mod):
    q, k, v = qkv(q_len=5, kv_len=5)
    assert_gradients(lambda: flex_attention(q, k, v, mod, return_lse=True), lambda: dense(q, k, v, mod), [q, k, v])


def test_a_mask():
    ids = torch.tensor([3, 1, 2, 3, 1, 2])

    def same(b, h, q_idx, kv_idx):
        return torch.unique(ids, return_inverse=True)[1][q_idx] == ids.argsort().argsort()[kv_idx] // 2

    got = create_mask(same, 1, 1, 6, 6, "cpu")[0, 0]
    inverse, rank = torch.unique(ids, return_inverse=True)[1], ids.argsort().argsort() // 2
    assert torch.equal(got, inverse[:, None] == rank[None])
    mask = heddle.torch.create_block_mask(same, None, None, 6, 6, "cpu")
    q = torch.randn(1, 1, 6, 4)
    want = torch.nn.functional.scaled_dot_product_attention(q, q, q, got)
    torch.testing.assert_close(flex_attention(q, q, q, block_mask=mask), want)


layer = torch.nn.Linear(2, 1).double()
UNDER_COMPILE = {
    "reshape": lambda s, b, h, q_idx, kv_idx: s + table.reshape(-1)[q_idx * SIZE + kv_idx],
    "view": lambda s, b, h, q_idx, kv_idx: s + table.view(3, 3, SIZE)[q_idx // 3, q_idx % 3, kv_idx],
    "chunk": lambda s, b, h, q_idx, kv_idx: s + table.chunk(3)[1][q_idx // 4, kv_idx],
    "chunk of columns": lambda s, b, h, q_idx, kv_idx: s + table[:, 1:].chunk(2, 1)[1][q_idx, kv_idx // 4],
    "linear": lambda s, b, h, q_idx, kv_idx: s + layer(torch.stack([q_idx.double(), kv_idx.double()]) * 0.1)[0],
}


@pytest.mark.parametrize("name", UNDER_COMPILE)
def test_under_compile(name):
    torch._dynamo.reset()
    q, k, v = qkv(q_len=SIZE, kv_len=SIZE)
    mod = UNDER_COMPILE[name]
    compiled = torch.compile(lambda q, k, v: flex_attention(q, k, v, mod, return_lse=True), fullgraph=True, backend="aot_eager")
    assert_gradients(lambda: compiled(q, k, v), lambda: dense(q, k, v, mod), [q, k, v, table, *layer.parameters()])
