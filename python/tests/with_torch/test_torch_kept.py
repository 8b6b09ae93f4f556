"""A kept expression serves a call only if everything that the mod reaches is what it was: makers of mods for a number,
called with two numbers, beside torch."""

import functools
import sys
import types

import numpy as np
import pytest
import torch

from agreement import assert_agrees

FIXED = torch.arange(8.0)
number = 0.0


def scale(factor):
    return lambda x: x * factor


class Holder:
    def __init__(self, factor):
        self.function = scale(factor)
        self.inner = types.SimpleNamespace(factor=factor)
        self.list, self.factor = [factor], factor

    def by_function(self, score, b, h, q_idx, kv_idx):
        return self.function(score)

    def by_inner_object(self, score, b, h, q_idx, kv_idx):
        return score * self.inner.factor

    def by_list(self, score, b, h, q_idx, kv_idx):
        return score * self.list[0]

    def by_getattr(self, score, b, h, q_idx, kv_idx):
        return score * getattr(self, "fac" + "tor")

    def by_helper(self, score, b, h, q_idx, kv_idx):
        return helper_of(self, score)

    def by_method(self, score, b, h, q_idx, kv_idx):
        return self.scaled(score)

    def scaled(self, x):
        return x * self.factor


def helper_of(owner, x):
    return x * owner.factor


class Cap(torch.nn.Module):
    def __init__(self, cap):
        super().__init__()
        self.cap = cap

    def forward(self, x):
        return self.cap * torch.tanh(x / self.cap)


class Layer(torch.nn.Module):
    def __init__(self, cap):
        super().__init__()
        self.cap = Cap(cap)

    def forward(self, score, b, h, q_idx, kv_idx):
        return self.cap(score)


class Callable:
    def __call__(self, score, b, h, q_idx, kv_idx):
        return score * number


class Partial(functools.partial):
    pass


def scaled_by(factor, score, b, h, q_idx, kv_idx):
    return score * factor


def in_containers(factor):
    functions = {"a": [scale(factor)]}
    return lambda score, b, h, q_idx, kv_idx: functions["a"][0](score)


def two_methods(factor):
    one, other = Holder(factor), Holder(factor)
    first, second = one.scaled, other.by_list
    return lambda score, b, h, q_idx, kv_idx: first(score) + second(score, b, h, q_idx, kv_idx)


def of_global(factor):
    global number
    number = factor
    return Callable()


def of_function_attribute(factor):
    def helper(x):
        return x * helper.factor

    helper.factor = factor
    return lambda score, b, h, q_idx, kv_idx: helper(score)


def of_imported_module(factor):
    module = sys.modules.setdefault("heddle_test_settings", types.ModuleType("heddle_test_settings"))
    module.factor = factor

    def score(score, b, h, q_idx, kv_idx):
        import heddle_test_settings

        return score * heddle_test_settings.factor

    return score


def of_list_of_a_tensor(factor):
    table = torch.full((3,), factor)
    return lambda score, b, h, q_idx, kv_idx: score * sum(table.tolist())


def of_numpy_element(factor):
    table = np.full(2, factor)
    return lambda score, b, h, q_idx, kv_idx: score * float(table[0])


def of_numpy_scalar(factor):
    scalar = np.array(factor)
    return lambda score, b, h, q_idx, kv_idx: score * float(scalar)


def of_type(factor):
    factor = int(factor) if factor > 1 else factor
    return lambda score, b, h, q_idx, kv_idx: score * 3 if type(factor) is int else score * factor


def of_isinstance(factor):
    factor = int(factor) if factor > 1 else factor
    return lambda score, b, h, q_idx, kv_idx: score * factor if isinstance(factor, float) else score - kv_idx


def wrapped(factor):
    @functools.wraps(torch.tanh)
    def helper(x):
        return x * factor

    return lambda score, b, h, q_idx, kv_idx: helper(score)


def overflowing(factor):
    n = 2 if factor < 1 else 100_000
    return lambda score, b, h, q_idx, kv_idx: score + (q_idx < n * n) * (n * 1e-5)


def powers(factor):
    n, m = 2, 2 if factor < 1 else -1
    return lambda score, b, h, q_idx, kv_idx: score * n**m


MAKERS = {
    **{
        f"Holder.{name}": lambda factor, name=name: getattr(Holder(factor), name)
        for name in ("by_function", "by_inner_object", "by_list", "by_getattr", "by_helper", "by_method")
    },
    "submodule": Layer,
    "method of a module": lambda factor: Layer(factor).forward,
    "subclass of partial": lambda factor: Partial(scaled_by, factor),
    "partial": lambda factor: functools.partial(scaled_by, factor),
    **{
        maker.__name__: maker
        for maker in (
            in_containers,
            two_methods,
            of_global,
            of_function_attribute,
            of_imported_module,
            of_list_of_a_tensor,
            of_numpy_element,
            of_numpy_scalar,
            of_type,
            of_isinstance,
            wrapped,
            overflowing,
            powers,
        )
    },
}


@pytest.mark.parametrize("name", MAKERS)
def test_another_number_is_another_result(name):
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 2, 8, 8, generator=generator) for _ in range(3))
    results = [assert_agrees(q, k, v, MAKERS[name](factor)) for factor in (0.5, 3.0, 0.5)]
    assert torch.equal(results[0], results[2]) and not torch.equal(results[0], results[1])


def test_bounds_past_i32():
    q = torch.randn(1, 1, 8, 8)
    assert_agrees(q, q, q, mask_mod=lambda b, h, q_idx, kv_idx: kv_idx < 2**40)
    assert_agrees(q, q, q, mask_mod=lambda b, h, q_idx, kv_idx: kv_idx > -(2**63))


@pytest.mark.parametrize("bound", [2**31 - 1, 2**31 - 5, 2**30, -(2**31), -(2**31) + 3, 2**40])
def test_sums_beside_a_number_near_the_end_of_i32(bound):
    """As torch's of 64 bits: they do not wrap. The number may come after a small one, of which it is a param."""
    q = torch.randn(1, 1, 8, 8)
    for mask_of in (
        lambda n: lambda b, h, q_idx, kv_idx: (q_idx + n >= kv_idx) | (q_idx == kv_idx),
        lambda n: lambda b, h, q_idx, kv_idx: (n + kv_idx <= q_idx) | (q_idx == kv_idx),
        lambda n: lambda b, h, q_idx, kv_idx: (kv_idx - n < q_idx) | (q_idx == kv_idx),
        lambda n: lambda b, h, q_idx, kv_idx: (n - kv_idx > q_idx) | (q_idx == kv_idx),
        lambda n: lambda b, h, q_idx, kv_idx: (n - (kv_idx - q_idx) > 0) | (q_idx == kv_idx),
        lambda n: lambda b, h, q_idx, kv_idx: (torch.add(q_idx, n, alpha=1) >= kv_idx + n // 2) | (q_idx == kv_idx),
    ):
        for number in (2, bound, 3):
            assert_agrees(q, q, q, mask_mod=mask_of(number))


def test_sums_of_conditions():
    q = torch.randn(1, 1, 8, 8)
    assert_agrees(q, q, q, lambda score, b, h, q_idx, kv_idx: score * (((q_idx >= kv_idx) + (kv_idx >= 3)) == 1))
    assert_agrees(q, q, q, mask_mod=lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) + (kv_idx == 0))


def test_names_of_score_and_mask():
    """One call's captures and params, whatever they are called."""
    mask_x, x, mask_n, n = torch.randn(8), torch.randn(8), 0.5, 0.25
    q = torch.randn(1, 1, 8, 8)
    assert_agrees(
        q,
        q,
        q,
        lambda score, b, h, q_idx, kv_idx: score + mask_x[kv_idx] * mask_n,
        lambda b, h, q_idx, kv_idx: (x[kv_idx] > n) | (q_idx == kv_idx),
    )
