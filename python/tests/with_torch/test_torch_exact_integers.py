"""Integers of mods beyond 32 bits: torch's are of 64, in eager calls, compiled with open ints and exported."""

import pytest
import torch
from agreement import DEVICE
from torch.export import Dim

from heddle.torch import create_block_mask, flex_attention

I, J = 20, 24
i, j = torch.arange(I)[:, None], torch.arange(J)[None]
RANDOM = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(1, 2, n, 16, generator=RANDOM).to(DEVICE) for n in (I, J, J))

# Comparisons of positions and a number n.
CONDITIONS = {
    "sum": lambda n, i, j: i + n > j,
    "difference": lambda n, i, j: (i + n) - (j + n) > 2,
    "far": lambda n, i, j: j < n + (2**31 - 2),
    "product": lambda n, i, j: i * n + j > j * n + i,
    "rest": lambda n, i, j: (i * n + j * 7) % 5 < 3,
    "rest of n": lambda n, i, j: (i * 1103515245 + j * 12345) % n < n // 2,
    "hash": lambda n, i, j: ((i * 1103515245 + j * 12345 + n) % 2147483647) % 3 != 0,
    "quotient": lambda n, i, j: (i * n + j) // n > j,
    "toward 0": lambda n, i, j: torch.div(i * n - j * n, n + 1, rounding_mode="trunc") > 1,
    "fmod": lambda n, i, j: torch.fmod(i * n - j * n, 7) > 1,
    "shifted": lambda n, i, j: ((i << 33) + n) > (j << 33),
    "shifted back": lambda n, i, j: ((i * n) >> 3) % 2 == 0,
    "shifted by an index": lambda n, i, j: ((i + n) << j) >> j != i + n,
    "square": lambda n, i, j: (i + n)**2 > (j + n) * (i + n),
    "of the host": lambda n, i, j: i * (n * n % 7) > j,
    "bits": lambda n, i, j: ((i * n) & 0xff) > (((j * n) ^ i) & 0x7f),
    "minimum": lambda n, i, j: torch.minimum(i * n, j * n) >= j * n,
    "magnitude": lambda n, i, j: ((i - j) * n).abs() >= 3 * n,
    "negated": lambda n, i, j: -(i * n) <= -(j * n),
    "equal": lambda n, i, j: (i * n != j * n) | (i + n == j + n),
    "clamped": lambda n, i, j: (i * n).clamp(3, 2 * n) < j * n + 4,
    "chosen": lambda n, i, j: torch.where(i > 3, i * n, j) > j * (n - 1),
    "real": lambda n, i, j: (i * n + j * n) / n + 0.5 > 2 * j,
}
NUMBERS = (3, 70000, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**31 + 5, 2**40 + 3, -5, -(2**31), -(2**35))


def half_where(condition):
    return lambda score, b, h, i, j: torch.where(condition(i, j), score, 0.5 * score)


def expected(condition, query=q):
    """In float64, with exact integers."""
    query, key, value = (x.double().cpu() for x in (query, k, v))
    scores = query @ key.mT / 4.0
    return torch.where(condition(i, j), scores, 0.5 * scores).softmax(-1) @ value


def check(got, want):
    torch.testing.assert_close(got.double().cpu(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONDITIONS)
def test_numbers_of_a_mod(name):
    for n in NUMBERS:
        def condition(i, j, n=n):
            return CONDITIONS[name](n, i, j)

        for _ in range(2):  # the second call goes another way
            check(flex_attention(q, k, v, half_where(condition)), expected(condition))
        mask = create_block_mask(lambda b, h, i, j: condition(i, j), None, None, I, J, DEVICE, BLOCK_SIZE=1)
        assert torch.equal(mask.to_dense()[0, 0].bool().cpu(), condition(i, j).expand(I, J)), n


@pytest.mark.parametrize("name", ["far", "product", "rest of n", "hash", "toward 0", "clamped", "shifted", "of the host", "real"])
def test_open_ints_of_torch_compile(name):
    torch._dynamo.reset()
    attend = torch.compile(
        lambda q, n: flex_attention(q, k, v, half_where(lambda i, j: CONDITIONS[name](n, i, j))), backend="aot_eager",
        dynamic=True)
    with torch._dynamo.config.patch(recompile_limit=20):  # where Python asks for the sign of n, or for n
        for n in NUMBERS:
            check(attend(q, n), expected(lambda i, j, n=n: CONDITIONS[name](n, i, j)))


class OfALength(torch.nn.Module):
    def __init__(self, condition, number):
        super().__init__()
        self.condition, self.number = condition, number

    def forward(self, q, rows):
        n = self.number(rows.shape[0])
        return flex_attention(q, k, v, half_where(lambda i, j: self.condition(n, i, j)))


@pytest.mark.parametrize("name", ["far", "rest", "quotient", "of the host", "clamped"])
@pytest.mark.parametrize("strict", [False, True])
def test_lengths_that_torch_export_keeps_open(name, strict):
    for number in (lambda length: length * length * 2**30 + 1, lambda length: -length * 2**29):
        model = OfALength(CONDITIONS[name], number)
        shapes = {}, {0: Dim("length", min=2, max=400)}
        program = torch.export.export(model, (q, torch.zeros(12)), dynamic_shapes=shapes, strict=strict).module()
        for length in (12, 7, 399):
            def condition(i, j, n=number(length)):
                return CONDITIONS[name](n, i, j)

            check(program(q, torch.zeros(length)), expected(condition))


def test_a_place_in_a_table_of_all_scores():
    """i * S + j of 40,000 queries leaves i32, and 2,000 do not: the kept expression serves both."""
    keys = 70000

    def score(score, b, h, i, j):
        return torch.where((i * keys + j) % 3 == 0, score, 0.25 * score)

    key, value = k[:, :, :4], v[:, :, :4]
    for queries in (2000, 40000, 2000):
        query = torch.randn(1, 2, queries, 16, generator=RANDOM).to(DEVICE)
        scores = query.double().cpu() @ key.double().cpu().mT / 4.0
        kept = (torch.arange(queries)[:, None] * keys + torch.arange(4)) % 3 == 0
        want = torch.where(kept, scores, 0.25 * scores).softmax(-1) @ value.double().cpu()
        for _ in range(2):
            check(flex_attention(query, key, value, score), want)


def test_gradients():
    slopes = torch.rand(2, generator=RANDOM).to(DEVICE).requires_grad_()
    n = 2**33 + 1

    def score(score, b, h, i, j):
        return score + slopes[h] * ((i * n - j * n) // n)

    query = q.clone().requires_grad_()
    want_query, want_slopes = q.double().cpu().requires_grad_(), slopes.detach().double().cpu().requires_grad_()
    scores = want_query @ k.double().cpu().mT / 4.0 + want_slopes[:, None, None] * (i - j)
    wanted = torch.autograd.grad((scores.softmax(-1) @ v.double().cpu()).square().sum(), (want_query, want_slopes))
    for _ in range(2):
        made = torch.autograd.grad(flex_attention(query, k, v, score).square().sum(), (query, slopes))
        for got, want in zip(made, wanted):
            torch.testing.assert_close(got.double().cpu(), want, rtol=1e-4, atol=1e-4)


def test_refusals():
    n = 2**62 + 1
    with pytest.raises(ValueError, match=r"divides by an integer that may be 0, or one of more than 62 bits"):
        flex_attention(q, k, v, half_where(lambda i, j: (i * n) // n > j))
    with pytest.raises(ValueError, match=r"divides by an integer that may be 0"):
        flex_attention(q, k, v, half_where(lambda i, j: (i * 2**40) // (j * 2**40) > j))
