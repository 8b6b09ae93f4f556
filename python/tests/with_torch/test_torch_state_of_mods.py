"""test_state_of_mods.py for heddle.torch: ways to reach state, whose numbers change between calls."""

import itertools
import time

import numpy as np
import pytest
import torch

import heddle
from heddle.torch import flex_attention, trace_counts
from ways_to_state import FREE, KEPT, WAYS, together

GENERATOR = torch.Generator().manual_seed(11)
Q, K, V = (torch.randn(1, 2, 6, 8, generator=GENERATOR) for _ in range(3))
SCALE = Q.shape[-1] ** -0.5
# Kept for each shape.
KEPT_HERE = KEPT | {"shape_of_an_array", "shape_of_a_row"}


class Face:
    name = "torch"
    numbers = (0.5, 2.0, 3.0, 4.0)

    @staticmethod
    def array(values):
        return torch.tensor(values, dtype=torch.float32)

    @staticmethod
    def integers(values):
        return torch.tensor(values, dtype=torch.int32)

    @staticmethod
    def fill(tensor, x):
        tensor.fill_(x)


def traces():
    return trace_counts()["traces"]


def assert_right(mod, put, numbers):
    for x in numbers:
        put(x)
        factor = float(mod(torch.tensor(1.0), *torch.zeros(4, dtype=torch.int32)))
        put(x)
        got = flex_attention(Q, K, V, mod)
        torch.testing.assert_close(got, flex_attention(Q, K, V, scale=SCALE * factor), msg=f"number {x}")


@pytest.mark.parametrize("name", sorted(WAYS))
def test_another_number_is_another_result(name):
    mod, put = WAYS[name](Face)
    assert_right(mod, put, (0.5, 2.0, 0.5, 0.5, 4.0, 2.0, 3.0, 3.0, 0.5))
    before = traces()
    assert_right(mod, put, (0.5, 2.0, 4.0, 3.0))
    if name not in FREE:
        assert traces() - before == (0 if name in KEPT_HERE else 4)


@pytest.mark.parametrize("seed", range(40))
def test_random_ways_together(seed):
    for mod, put in together(Face, seed):
        assert_right(mod, put, [0, 0])


def test_traced_always():
    mod, put = WAYS["cell"](Face)
    assert_right(mod, put, (0.5, 0.5))
    before = traces()
    heddle.set_trace_always(True)
    try:
        assert_right(mod, put, (0.5, 0.5, 2.0))
        assert traces() - before == 3
    finally:
        heddle.set_trace_always(False)
    assert_right(mod, put, (0.5, 0.5))
    assert traces() - before == 3


def test_clocks_random_numbers_and_torchs_own_state():
    """Each call has its own."""
    numbers = itertools.count(1)

    def by_clock(score, b, h, q_idx, kv_idx):
        return score * (1 + time.perf_counter() % 1e-4 * 1e4)

    def by_count(score, b, h, q_idx, kv_idx):
        return score * next(numbers)

    def by_numpy(score, b, h, q_idx, kv_idx):
        return score * float(np.random.rand())

    for mod in (by_clock, by_count, by_numpy):
        assert len({flex_attention(Q, K, V, mod).sum().item() for _ in range(5)}) > 1, mod.__name__

    def by_seed(score, b, h, q_idx, kv_idx):
        return score * (torch.initial_seed() % 7 + 1)

    def by_dtype(score, b, h, q_idx, kv_idx):
        return score * (2.0 if torch.get_default_dtype() == torch.float64 else 1.0)

    def by_gradients(score, b, h, q_idx, kv_idx):
        return score * (2.0 if torch.is_grad_enabled() else 1.0)

    one, two = (flex_attention(Q, K, V, scale=SCALE * x) for x in (1.0, 2.0))
    for seed, want in ((7, one), (8, two), (7, one)):
        torch.manual_seed(seed)
        torch.testing.assert_close(flex_attention(Q, K, V, by_seed), want)
    for dtype, want in ((torch.float32, one), (torch.float64, two), (torch.float32, one)):
        torch.set_default_dtype(dtype)
        try:
            got = flex_attention(Q, K, V, by_dtype)
        finally:
            torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(got, want)
    for enabled, want in ((True, two), (False, one), (True, two)):
        with torch.set_grad_enabled(enabled):
            torch.testing.assert_close(flex_attention(Q, K, V, by_gradients), want)


@pytest.mark.parametrize(
    "make", [torch.tensor, torch.as_tensor, torch.scalar_tensor, lambda x: torch.tensor([x, 1.0])[0]])
def test_a_tensor_of_a_number(make):
    """It is none that the mod detached."""
    number = 2.0

    def mod(score, b, h, q_idx, kv_idx):
        return score + make(number) * kv_idx

    q = Q.clone().requires_grad_()
    for number in (2.0, 3.0, 2, 0.5):
        want = flex_attention(q, K, V, lambda score, b, h, q_idx, kv_idx: score + number * kv_idx)
        got = flex_attention(q, K, V, mod)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*(torch.autograd.grad(x.square().sum(), q)[0] for x in (got, want)))


def test_elements_of_a_tensor_of_a_number():
    number = 2.7

    def mod(score, b, h, q_idx, kv_idx):
        assert torch.tensor(number).dtype == torch.float32 and torch.tensor(3).dtype == torch.int64
        return score * torch.tensor(number, dtype=torch.int32)

    torch.testing.assert_close(flex_attention(Q, K, V, mod), flex_attention(Q, K, V, scale=SCALE * 2))


def test_numbers_of_computed_tensors():
    """They depend on no score. One that the mod wrote into, and one that depends on a score, are refused."""
    table, number = torch.tensor([0.5, 2.0]), 2.0

    def mod(score, b, h, q_idx, kv_idx):
        pair = torch.stack([table[1], table.sum() - 0.5])
        first, _ = pair.unbind()
        made = torch.arange(3).float() * torch.tensor(number)
        return score * float(first) * table[h] if made.tolist()[1] > 1 and (pair > 1).all() else score

    def plain(score, b, h, q_idx, kv_idx):
        return score * 2 * table[h] if number > 1 else score

    for number in (2.0, 0.5, 2.0):
        torch.testing.assert_close(flex_attention(Q, K, V, mod), flex_attention(Q, K, V, plain))

    def written(score, b, h, q_idx, kv_idx):
        return score * float((table * 1.0).add_(1)[0])

    def of_score(score, b, h, q_idx, kv_idx):
        return score * float(table[h] + 1)

    for refused in (written, of_score):
        with pytest.raises(TypeError, match="needs the value of"):
            flex_attention(Q, K, V, refused)


def test_what_python_gets_of_tensors():
    """Each is asked for in a way that the key does not have."""
    one, other = torch.ones(3), torch.ones(3)

    def is_true(question):
        return lambda score, b, h, q_idx, kv_idx: score * 2.0 if question() else score * 3.0

    def grow(x):
        nonlocal other
        other = torch.ones(3 if x else 4)

    def learn(x):
        other.requires_grad_(x)

    def stride(x):
        nonlocal other
        other = torch.ones(6)[::2] if x else torch.ones(3)

    for question, put in (
        (lambda: torch.is_same_size(input=one, other=other), grow), (lambda: other.requires_grad, learn),
        (lambda: other.stride(0) == 2, stride), (lambda: torch.Tensor.is_contiguous(other), stride),
        (lambda: len(other) == 3, grow), (lambda: other.numel() == 3, grow), (lambda: other.is_leaf, lambda x: None),
    ):
        with torch.no_grad():
            for x in (True, False, True, True, False):
                put(x)
                want = flex_attention(Q, K, V, scale=SCALE * (2.0 if question() else 3.0))
                torch.testing.assert_close(flex_attention(Q, K, V, is_true(question)), want)
