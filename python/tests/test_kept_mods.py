"""Mods that C++ recognises (core/kept_mods.cc): everything that it looks at is changed between calls."""

import threading

import numpy as np
import pytest

import heddle
from heddle._tracing import trace
from inputs import inputs

Q, K, V = inputs(batch=1, q_heads=2, kv_heads=2, q_len=6, kv_len=6)
table = np.linspace(0, 1, 6, dtype=np.float32)
factor = 0.5


@pytest.fixture
def walks(monkeypatch):
    """Counts the walks over mods that C++ did not recognise."""
    counted = []

    class Counting(trace.Reached):
        __slots__ = ()

        def __init__(self, *args, **kwargs):
            counted.append(args)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(trace, "Reached", Counting)
    return counted


def wanted(score_mod=None, mask_mod=None, weight_mod=None):
    batch, heads, length, _ = Q.shape
    index = np.ogrid[:batch, :heads, :length, :length]
    scores = (Q @ K.transpose(0, 1, 3, 2)).astype(np.float64) * Q.shape[-1] ** -0.5
    if score_mod is not None:
        scores = score_mod(scores, *index)
    if mask_mod is not None:
        scores = np.where(mask_mod(*index), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    if weight_mod is not None:
        weights = weights * weight_mod(*index)
    return weights @ V


def assert_right(*mods, kind="score_mod"):
    """Twice: the second call takes what the first has kept."""
    for mod in mods:
        for _ in range(2):
            np.testing.assert_allclose(
                heddle.attention(Q, K, V, **{kind: mod}), wanted(**{kind: mod}), rtol=2e-5, atol=2e-6
            )


def scaled(number):
    return lambda score, b, h, q_idx, kv_idx: score * number


def summed(x, y):
    return lambda score, b, h, q_idx, kv_idx: score + x[kv_idx] - 2 * y[kv_idx]


def ranked(x, rank):
    return lambda score, b, h, q_idx, kv_idx: score + (x[q_idx, kv_idx] if rank == 2 else x[kv_idx])


def helped(one, other):
    return lambda score, b, h, q_idx, kv_idx: one(score) - 0.25 * other(score)


def by_sign_of_zero(number):
    return lambda score, b, h, q_idx, kv_idx: score * (2 if str(number) == "-0.0" else 3)


def by_global(score, b, h, q_idx, kv_idx):
    return score * factor + table[kv_idx]


CHANGES = {
    "number": [scaled(x) for x in (0.5, 2.0, 2, True + 1, -1.0)],
    "sign of zero": [by_sign_of_zero(x) for x in (0.0, -0.0)],
    "element type": [summed(table.astype(kind), table) for kind in ("f4", "f8", "f2", "i4", "u1")],
    "rank": [ranked(table, 1), ranked(table[:, None] * table, 2)],
    "one array for two": [summed(table, table.copy()), summed(table, table), summed(table, table * 2)],
    "strides": [summed(table[::-1], table), summed(np.repeat(table, 2)[::2], table)],
    "functions": [helped(scaled_by, scaled_by) for scaled_by in (lambda x: x * 2, lambda x: x * 3)],
    "two functions": [helped(lambda x: x * 2, lambda x: x * 3), helped(*2 * [lambda x: x * 2])],
    "array and number": [scaled(x) for x in (0.5, np.float32(0.25), 3)],
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_value(name):
    assert_right(*CHANGES[name], *reversed(CHANGES[name]))


def test_globals_and_defaults(monkeypatch):
    global factor, table
    before = factor, table
    try:
        assert_right(by_global)
        factor = 2.0
        assert_right(by_global)
        table = table[::-1].copy()
        assert_right(by_global)
    finally:
        factor, table = before

    def by_default(score, b, h, q_idx, kv_idx, scale=0.5):
        return score * scale

    assert_right(by_default)
    by_default.__defaults__ = (2.0,)
    assert_right(by_default)


def test_arrays_changed_in_place():
    values = table.copy()
    mod = summed(values, values)
    assert_right(mod)
    values *= 3
    assert_right(mod)


def test_a_kept_mod_is_recognised_in_cpp(walks):
    ids = np.array([0, 0, 0, 1, 1, 1], np.int32)

    def same(number):
        return lambda b, h, q_idx, kv_idx: (ids[q_idx] == ids[kv_idx]) & (kv_idx >= number)

    def dropping(b, h, q_idx, kv_idx):
        return table[kv_idx]

    def calls():
        assert_right(summed(table, table))
        assert_right(same(0), kind="mask_mod")
        assert_right(dropping, kind="weight_mod")
        heddle.attention(Q, K, V, mask_mod=heddle.mods.documents(ids))
        heddle.BlockMask.build(same(0), 6, 6, block=2)

    calls()
    walks.clear()
    calls()
    assert not walks


def test_names_of_two_mods_in_one_call():
    """Both read an array that they call `x`."""

    def adding(x):
        return lambda score, b, h, q_idx, kv_idx: score + x[kv_idx]

    def below(x):
        return lambda b, h, q_idx, kv_idx: x[kv_idx] < 0.5

    for one, other in ((table, table[::-1].copy()), (table * 2, table), (table, table)):
        score_mod, mask_mod = adding(one), below(other)
        for _ in range(2):
            got = heddle.attention(Q, K, V, score_mod=score_mod, mask_mod=mask_mod)
            np.testing.assert_allclose(got, wanted(score_mod, mask_mod), rtol=2e-5, atol=2e-6)


def test_several_threads():
    wants = {x: wanted(scaled(x)) for x in (0.5, 1.5, 2.5)}
    wrong = []

    def work():
        for _ in range(300):
            for x, want in wants.items():
                if not np.allclose(heddle.attention(Q, K, V, score_mod=scaled(x)), want, atol=1e-5):
                    wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
