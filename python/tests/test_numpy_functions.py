"""Mods written as NumPy code is: NumPy's functions of scores and indices, views and sums of arrays, negative places."""

import math

import numpy as np
import pytest

import heddle

random = np.random.default_rng(5)
B, H, L, S = 1, 2, 9, 11
Q, K, V = (random.standard_normal((B, H, rows, 8)).astype(np.float32) for rows in (L, S, S))
TABLE = random.standard_normal((3, 2 * S)).astype(np.float32)
HEADS, ROWS, KEYS = np.arange(H)[:, None, None], np.arange(L)[:, None], np.arange(S)


@np.errstate(invalid="ignore")
def attention(score=None, mask=None):
    """In float64, of mods that take arrays."""
    s = Q.astype(np.float64) @ K.transpose(0, 1, 3, 2) / np.sqrt(8)
    if score is not None:
        s = score(s, 0, HEADS, ROWS, KEYS)
    if mask is not None:
        s = np.where(mask(0, HEADS, ROWS, KEYS), s, -np.inf)
    weights = np.exp(s - s.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ V


SCORES = {
    "functions of a score": lambda s, b, h, i, j: np.tanh(s) + np.exp(-np.abs(s)) + np.log1p(np.square(s)) + np.rint(s),
    "two operands": lambda s, b, h, i, j: np.maximum(s, 0.1) - np.minimum(i, j) * 0.1 + np.power(np.abs(s), 1.5),
    "choices": lambda s, b, h, i, j: np.where(i > j, s, np.clip(s, -0.5, 0.5)),
    "numbers of NumPy's": lambda s, b, h, i, j: np.float64(0.5) * s + np.float32(0.25) * j - np.int64(2) / np.float32(3),
    "operators": lambda s, b, h, i, j: np.add(s, np.multiply(np.floor_divide(i, 3), 0.1)) - np.mod(j, 4) * 0.1 + np.negative(s) / 2,
    "a sum over coefficients": lambda s, b, h, i, j: s + (np.array([0.1, 0.02]) * np.stack([i, j])).sum() if isinstance(
        s, heddle.Expr) else s + 0.1 * i + 0.02 * j,
    "Python's rounding": lambda s, b, h, i, j: (round(s) + math.floor(s) * 0.5 + math.ceil(s) + math.trunc(s) if isinstance(
        s, heddle.Expr) else np.rint(s) + np.floor(s) * 0.5 + np.ceil(s) + np.trunc(s)),
    "composed": lambda s, b, h, i, j: (np.hypot(s, i) * 0.1 - np.logaddexp(s, 0.5) + np.logaddexp2(s, j * 0.1) + np.cbrt(s)
                                       + np.heaviside(s, 0.5) + np.heaviside(i - j, 0.25) + np.sinh(s) * 0.1 + np.cosh(s)),
    "angles, powers and NaN": lambda s, b, h, i, j: (np.deg2rad(s) + np.degrees(s) * 0.01 + np.float_power(i + 1, 0.5)
                                                     + np.fmax(s, np.where(i > j, np.nan, 0.1)) - np.fmin(np.sqrt(s), 0.3)
                                                     + np.isfinite(np.sqrt(s)).astype(np.float32)),
    "a selection": lambda s, b, h, i, j: np.select([i > j, i == j], [s, s * 2], default=-1.0) + np.select([j < 2], [s]),
    "other types": lambda s, b, h, i, j: s + (s * 3).astype(np.int64) * 0.1 + (i / 2).astype("i4") + i.astype(float) + (
        np.isin(j, [1, np.int64(4)]).astype(np.float32) - (j % 2).astype(bool).astype(int)),
    "a row": lambda s, b, h, i, j: s + TABLE[0][j],
    "the last row": lambda s, b, h, i, j: s + TABLE[-1, j] + TABLE[-2][j],
    "a slice": lambda s, b, h, i, j: s + TABLE[1:, ::2][h, j],
    "transposed": lambda s, b, h, i, j: s + TABLE.T[j, h],
    "reshaped": lambda s, b, h, i, j: s + TABLE.reshape(-1)[j + 2 * h],
    "a sum of arrays": lambda s, b, h, i, j: s + (2 * TABLE + 1)[h, j],
    "a function of an array": lambda s, b, h, i, j: s + np.sqrt(np.abs(TABLE))[h, j],
}
MASKS = {
    "logical": lambda b, h, i, j: np.logical_or(np.logical_and(i >= j, np.not_equal(j, 3)), np.logical_not(j > 0)),
    "comparisons": lambda b, h, i, j: np.greater_equal(i, j) | np.equal(j, 0) | (np.bool_(True) & (j == 1)),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    for _ in range(2):
        got = heddle.attention(Q, K, V, score_mod=SCORES[name])
        np.testing.assert_allclose(got, attention(SCORES[name]), atol=2e-6)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    np.testing.assert_allclose(heddle.attention(Q, K, V, mask_mod=MASKS[name]), attention(mask=MASKS[name]), atol=2e-6)


def test_each_call_reads_the_present_array():
    table = TABLE.copy()
    mods = (lambda s, b, h, i, j: s + table[-1, j], lambda s, b, h, i, j: s + table[1:].T[j, 1])
    for mod in mods:
        heddle.attention(Q, K, V, score_mod=mod)
    table += 1.5 * np.arange(2 * S)
    for mod in mods:
        np.testing.assert_allclose(heddle.attention(Q, K, V, score_mod=mod), attention(mod), atol=2e-6)
    for table in (TABLE[:2], TABLE):  # the last row is another one
        np.testing.assert_allclose(heddle.attention(Q, K, V, score_mod=mods[0]), attention(mods[0]), atol=2e-6)


@pytest.mark.parametrize("mod, said", [
    (lambda s, b, h, i, j: np.arctan2(s, 1.0), "numpy.arctan2 has no expression in a mod; .*, exp, "),
    (lambda s, b, h, i, j: np.sinc(s), "numpy.sinc has no expression in a mod; .* isin, .*'Expr' object has no attribute"),
    (lambda s, b, h, i, j: s.astype(np.float16), "astype.*float16.* of a score or an index; float32, float64, int32, "),
    (lambda s, b, h, i, j: np.where(np.isin(i, range(300)), s, 0.0), "isin of an expression is given 300 values; up to 256"),
    (lambda s, b, h, i, j: np.exp(s, out=np.zeros(())), "numpy.exp of an expression is called with out"),
    (lambda s, b, h, i, j: s + [0.5, 0.25][h], r"no number for 'h', .*numpy.array\(table\)\[kv_idx\]"),
    (lambda s, b, h, i, j: s + sum(range(j)), "no number for 'kv_idx'"),
    (lambda s, b, h, i, j: float(s), "no number for 'score'.*heddle.exp, not math.exp"),
    (lambda s, b, h, i, j: s + TABLE, "elements of the array 'TABLE' of rank 2"),
    (lambda s, b, h, i, j: s + np.ones(3), r"not with an array of shape \(3,\): index it"),
    (lambda s, b, h, i, j: None, "mod <lambda> returned None; .* return"),
    (lambda s, b, h, i, j: np.zeros(3), r"mod <lambda> returned ndarray: .* shape \(3,\)"),
    (lambda s, b, h, i, j: "score", "mod <lambda> returned str: "),
])
def test_refusals(mod, said):
    with pytest.raises(TypeError, match=said):
        heddle.attention(Q, K, V, score_mod=mod)
