"""heddle.attention over NumPy: values against a float64 computation in NumPy, mods in every spelling, errors."""

import functools
import types

import numpy as np
import pytest

import heddle
from inputs import inputs


def inputs(batch=2, q_heads=4, kv_heads=2, q_len=9, kv_len=13, qk_dim=16, v_dim=8, dtype=np.float32):
    random = np.random.default_rng(7)
    draw = lambda *shape: random.standard_normal(shape).astype(dtype)  # noqa: E731
    q, k = draw(batch, q_heads, q_len, qk_dim), draw(batch, kv_heads, kv_len, qk_dim)
    return q, k, draw(batch, kv_heads, kv_len, v_dim)


def expected(q, k, v, score=None, mask=None, scale=None):
    """In float64; score and mask are functions of arrays."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    s = np.einsum("bhid,bhjd->bhij", q.astype(np.float64), k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    b, h, i, j = np.ogrid[tuple(slice(n) for n in s.shape)]
    t = s if score is None else score(s, b, h, i, j)
    if mask is not None:
        t = np.where(mask(b, h, i, j), t, -np.inf)
    top = np.max(t, axis=-1, keepdims=True)
    p = np.exp(t - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isfinite(top), top, 0))[..., 0]
    return np.einsum("bhij,bhjd->bhid", p / np.where(total == 0, 1, total), v), lse


def assert_close(o, want):
    np.testing.assert_allclose(o, want, rtol=2e-5, atol=2e-6)


def test_plain_with_lse():
    q, k, v = inputs()
    o, lse = heddle.attention(q, k, v, return_lse=True)
    want, want_lse = expected(q, k, v)
    assert o.dtype == np.float32 and lse.shape == (2, 4, 9)
    assert_close(o, want)
    assert_close(lse, want_lse)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types(dtype):
    q, k, v = inputs(dtype=dtype)
    o = heddle.attention(q, k, v, scale=0.3)
    assert o.dtype == dtype
    rtol, atol = (2e-3, 1e-3) if dtype == np.float16 else (1e-12, 1e-14)
    np.testing.assert_allclose(o, expected(q, k, v, scale=0.3)[0], rtol=rtol, atol=atol)


def test_arrays_in_a_closure_are_captured():
    q, k, v = inputs()
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    mod = lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)  # noqa: E731
    assert_close(heddle.attention(q, k, v, score_mod=mod), expected(q, k, v, mod)[0])


WRONG = np.zeros(20, np.complex64)
TABLE = np.linspace(-1, 1, 40, dtype=np.float32)


def of_table(distance, table=TABLE):
    return table[heddle.clip(distance + 20, 0, 39)]


def test_arrays_of_helpers_globals_and_defaults_are_captured():
    q, k, v = inputs()

    def mod(score, b, h, q_idx, kv_idx, gate=np.array([[1.0, 2.0, 3.0, 4.0]] * 2, np.float32)):
        return score * gate[b, h] + of_table(kv_idx - q_idx)

    def of_numpy(s, b, h, i, j):
        return s * np.array([[1.0, 2.0, 3.0, 4.0]] * 2)[b, h] + TABLE.astype(np.float64)[np.clip(j - i + 20, 0, 39)]

    assert_close(heddle.attention(q, k, v, score_mod=mod), expected(q, k, v, of_numpy)[0])


def test_bits_and_small_integers():
    q, k, v = inputs(q_len=13)
    flags = np.array([3, 1, 2, 0, 7, 5, 4, 6, 255, 128, 1, 3, 2], np.uint8)
    want = expected(q, k, v, mask=lambda b, h, i, j: (flags[i] >> 1) & flags[j] | (i == j) != 0)[0]
    mask = lambda b, h, i, j: ((flags[i] >> 1) & flags[j]) | heddle.to_i32(i == j) != 0  # noqa: E731
    assert_close(heddle.attention(q, k, v, mask_mod=mask), want)
    assert str(~heddle.Capture("x", "i16", 1)[3] << 2) == "~x[3] << 2"


def test_clamped_reads():
    q, k, v = inputs(q_len=13)
    ids = np.array([0] * 5 + [1] * 8, np.int64)
    mask = lambda b, h, i, j: ids[i + 3] == ids[j]  # noqa: E731
    with pytest.raises(ValueError, match="outside the tensor's extent"):
        heddle.attention(q, k, v, mask_mod=mask)
    want = expected(q, k, v, mask=lambda b, h, i, j: ids[np.minimum(i + 3, 12)] == ids[j])[0]
    assert_close(heddle.attention(q, k, v, mask_mod=mask, clamp_reads=True), want)


def test_masks_of_documents_and_text():
    q, k, v = inputs(q_len=13)
    ids = np.array([0] * 5 + [1] * 8, np.int32)
    want = expected(q, k, v, mask=lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j))[0]
    mask = lambda b, h, q_idx, kv_idx: (ids[q_idx] == ids[kv_idx]) & (q_idx >= kv_idx)  # noqa: E731
    assert_close(heddle.attention(q, k, v, mask_mod=mask), want)
    text = "ids[q_idx] == ids[kv_idx] and q_idx >= kv_idx"
    assert_close(heddle.attention(q, k, v, mask_mod=text, captures={"ids": ids}), want)


def test_partials_methods_and_two_arrays_of_one_name():
    q, k, v = inputs()
    first = functools.partial(lambda score, b, h, q_idx, kv_idx, by: score * by, by=2.0)
    assert_close(heddle.attention(q, k, v, score_mod=first), expected(q, k, v, lambda s, *_: 2 * s)[0])

    class Gate:
        def __init__(self, factor):
            self.factor = factor

        def mod(self, score, b, h, q_idx, kv_idx):
            return heddle.where(kv_idx > q_idx, score, score * self.factor)

    want = expected(q, k, v, lambda s, b, h, i, j: np.where(j > i, s, 3 * s))[0]
    assert_close(heddle.attention(q, k, v, score_mod=Gate(3.0).mod), want)

    def adds(x):
        return lambda score: score + x[0]

    one, other = adds(np.array([1.0], np.float32)), adds(np.array([2.0], np.float32))
    both = lambda score, b, h, q_idx, kv_idx: one(score) * other(score)  # noqa: E731
    assert_close(heddle.attention(q, k, v, score_mod=both), expected(q, k, v, lambda s, *_: (s + 1) * (s + 2))[0])


def test_writes_into_given_arrays_and_reads_strided_ones():
    q, k, v = (x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in inputs())
    o, lse = np.full((2, 4, 9, 8), np.nan, np.float64), np.full((2, 4, 9), np.nan, np.float32)
    assert heddle.attention(q, k, v, out=o, lse=lse, return_lse=True)[0] is o
    want, want_lse = expected(q, k, v)
    assert_close(o, want)
    assert_close(lse, want_lse)


def test_lengths_and_empty_rows():
    q, k, v = inputs()
    o, lse = heddle.attention(q, k, v, kv_lengths=np.array([0, 5], np.int32), return_lse=True)
    assert (o[0] == 0).all() and (lse[0] == -np.inf).all()
    assert_close(o[1:], expected(q[1:], k[1:, :, :5], v[1:, :, :5])[0])


def attends_late(b, h, i, j):
    return i >= j and j > 3


@pytest.mark.parametrize(
    "error, sentence, options",
    [
        (TypeError, "cannot branch on", {"mask_mod": attends_late}),
        (TypeError, "takes .score, b, h, q_idx, kv_idx.", {"score_mod": lambda s: s}),
        (TypeError, "not with str", {"score_mod": lambda s, b, h, i, j: s + "x"}),
        (ZeroDivisionError, "division", {"score_mod": lambda s, b, h, i, j: s + 1 / 0}),
        (TypeError, "score_mod is 3; a function, text or an expression", {"score_mod": 3}),
        (ValueError, "normalizer is 'soft'", {"normalizer": "soft"}),
        (ValueError, "lse is given without out", {"lse": np.zeros((2, 4, 9), np.float32)}),
        (ValueError, "complex64", {"mask_mod": lambda b, h, i, j: WRONG[i] == 1}),
    ],
)
def test_errors(error, sentence, options):
    with pytest.raises(error, match=sentence):
        heddle.attention(*inputs(), **options)


def test_tensors_that_differ_in_type():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="q, k, v are f32, f64, f32"):
        heddle.attention(q, k.astype(np.float64), v)


def test_a_repeated_call_finds_its_plan():
    q, k, v = inputs()
    slopes = np.ones(4, np.float32)
    call = lambda: heddle.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h])  # noqa: E731
    call()
    before = heddle.plan_cache_counts()
    call()
    after = heddle.plan_cache_counts()
    assert after["hits"] == before["hits"] + 1 and after["misses"] == before["misses"]


def test_a_kept_expression_reads_this_calls_arrays_and_numbers():
    q, k, v = inputs()

    def call(slopes, factor):
        return heddle.attention(q, k, v, score_mod=lambda s, b, h, i, j: s * factor + slopes[h])

    for slopes in (np.arange(4, dtype=np.float32), -np.arange(4, dtype=np.float32), np.arange(4, dtype=np.int32)):
        for factor in (1.0, 2.0, 2):
            assert_close(call(slopes, factor), expected(q, k, v, lambda s, b, h, i, j: s * factor + slopes[h])[0])

    class Scale:
        by = 1.0

    scale = Scale()
    changing = lambda s, b, h, i, j: s * scale.by  # noqa: E731
    for by in (1.0, 3.0):
        scale.by = by
        assert_close(heddle.attention(q, k, v, score_mod=changing), expected(q, k, v, lambda s, *_: s * by)[0])


def test_what_may_change_unseen_is_read_by_each_call():
    q, k, v = inputs()
    settings = types.ModuleType("settings")

    class Settings:
        by = 1.0

    of_module = lambda s, b, h, i, j: s * settings.by  # noqa: E731
    of_class = lambda s, b, h, i, j: s * Settings.by  # noqa: E731
    numbers = {"by": 1.0}
    get = numbers.get
    of_method = lambda s, b, h, i, j: s * get("by")  # noqa: E731
    for by in (1.0, 3.0):
        settings.by = Settings.by = numbers["by"] = by
        want = expected(q, k, v, lambda s, *_: s * by)[0]
        for mod in (of_module, of_class, of_method):
            assert_close(heddle.attention(q, k, v, score_mod=mod), want)


def test_expressions_of_a_closure():
    q, k, v = inputs()
    from heddle import _core

    distance = _core.leaf("kv_idx") - _core.leaf("q_idx")
    o = heddle.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + 0.25 * distance)
    assert_close(o, expected(q, k, v, lambda s, b, h, i, j: s + 0.25 * (j - i))[0])


def test_two_mods_that_read_arrays_of_one_name():
    q, k, v = inputs(q_len=13)

    def score_of(x):
        return lambda s, b, h, i, j: s + x[h]

    def mask_of(x):
        return lambda b, h, i, j: x[i] == x[j]

    gates, ids = np.arange(4, dtype=np.float32), np.array([0] * 5 + [1] * 8, np.int32)
    for _ in range(2):
        o = heddle.attention(q, k, v, score_mod=score_of(gates), mask_mod=mask_of(ids))
        assert_close(o, expected(q, k, v, lambda s, b, h, i, j: s + gates[h], lambda b, h, i, j: ids[i] == ids[j])[0])


def test_max_scores():
    q, k, v = inputs()
    out, largest = np.empty((*q.shape[:3], v.shape[-1]), q.dtype), np.empty(q.shape[:3], q.dtype)
    mask = heddle.mods.causal()
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, 1).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    allowed = np.tri(q.shape[2], k.shape[2], dtype=bool)
    want = np.where(allowed, scores, -np.inf).max(-1)
    for backend in ("cpu", "reference"):
        assert heddle.attention(q, k, v, mask_mod=mask, out=out, max_scores=largest, backend=backend) is out
        np.testing.assert_allclose(largest, want, rtol=1e-6, atol=2e-6)
        assert heddle.check(q, k, v, out, max_scores=largest, mask_mod=mask)
    np.testing.assert_array_equal(out, heddle.attention(q, k, v, mask_mod=mask, backend="reference"))
    report = heddle.check(q, k, v, out, max_scores=largest + 0.01, mask_mod=mask)
    assert not report and report.o.passed and not report.max_scores.passed
    with pytest.raises(ValueError, match="max_scores is given without out"):
        heddle.attention(q, k, v, max_scores=largest)
    with pytest.raises(ValueError, match="max_scores has shape"):
        heddle.attention(q, k, v, out=out, max_scores=largest[:, :, 1:])
    with pytest.raises(ValueError, match="max_scores is read-only"):
        heddle.attention(q, k, v, out=out, max_scores=np.broadcast_to(np.float32(0), largest.shape))
    with pytest.raises(ValueError, match="max_scores are asked for with normalizer"):
        heddle.attention(q, k, v, out=out, max_scores=largest, normalizer="sigmoid")


def test_arrays_in_other_orders():
    q, k, v = inputs()
    want = heddle.attention(q, k, v, mask_mod=heddle.mods.causal())
    for order in (np.asfortranarray, lambda x: x.swapaxes(2, 3).copy().swapaxes(2, 3), lambda x: x.repeat(2, 3)[..., ::2]):
        given = [order(x) for x in (q, k, v)]
        assert any(x.strides[-1] != x.itemsize for x in given)
        assert np.array_equal(heddle.attention(*given, mask_mod=heddle.mods.causal()), want)
        out = np.empty_like(want)
        assert heddle.attention(*given, out=out, mask_mod=heddle.mods.causal()) is out and np.array_equal(out, want)
        assert heddle.check(*given, want, mask_mod=heddle.mods.causal())
        lse = heddle.attention(q, k, v, return_lse=True)[1]
        o, d_o = heddle.attention(q, k, v), np.ones_like(want)
        gradients, plain = (heddle.attention_backward(*x, lse, d) for x, d in (
            ((*given, order(o)), order(d_o)), ((q, k, v, o), d_o)))
        for name in ("dq", "dk", "dv"):
            assert np.array_equal(getattr(gradients, name), getattr(plain, name)), name
    with pytest.raises(ValueError, match="out has strides"):
        heddle.attention(q, k, v, out=np.asfortranarray(want))


def unaligned(x):
    return np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)


@pytest.mark.parametrize("order", [np.asfortranarray, lambda x: x[..., ::-1].copy()[..., ::-1], unaligned],
                         ids=["Fortran's", "reversed", "unaligned"])
def test_arrays_in_other_orders_everywhere(order):
    q, k, v = inputs()
    o, lse = heddle.attention(q, k, v, return_lse=True)
    others = [order(x) for x in (q, k, v, o, lse, o)]
    np.testing.assert_array_equal(heddle.attention(*others[:3]), o)
    assert heddle.check(*others[:5])
    made, want = heddle.attention_backward(*others), heddle.attention_backward(q, k, v, o, lse, o)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(getattr(made, name), getattr(want, name))
    np.testing.assert_array_equal(heddle.merge_states([others[3], o], [others[4], lse]),
                                  heddle.merge_states([o, o], [lse, lse]))


@pytest.mark.parametrize("name", ["b", "h", "score", "exp", "min", "q_idx", "kv_len", "not_free", "größe", "x_b"])
def test_captures_may_have_any_name(name):
    """Names with a meaning in the text form become others; gradients are found by the array."""
    q, k, v = inputs()
    table, other = np.linspace(0.5, 2.0, 4, dtype=np.float32), np.ones(4, np.float32)
    made = {}
    exec(f"def make({name}, x_b_2):\n    return lambda t, bb, hh, qi, ki: t * {name}[hh] + x_b_2[hh] * ki", made)
    mod = made["make"](table, other)
    o, lse = heddle.attention(q, k, v, score_mod=mod, return_lse=True)
    want = expected(q, k, v, score=lambda s, b, h, i, j: s * table[h] + other[h] * j)
    np.testing.assert_allclose(o, want[0] if isinstance(want, tuple) else want, atol=1e-5)
    gradients = heddle.attention_backward(q, k, v, o, lse, np.ones_like(o), score_mod=mod, d_captures=[table])
    assert gradients.of(table).shape == (4,)


def test_rows_behind_the_last_sequence():
    q, k, v = inputs(batch=1, q_len=11, kv_len=13)
    options = {"cu_seqlens_q": np.array([0, 4, 9]), "cu_seqlens_kv": np.array([0, 6, 10])}
    own = heddle.attention(q[:, :, :9], k[:, :, :10], v[:, :, :10], return_lse=True, **options)
    q[:, :, 9:], k[:, :, 10:], v[:, :, 10:] = np.nan, np.nan, np.nan
    o, lse = heddle.attention(q, k, v, return_lse=True, **options)
    assert np.array_equal(o[:, :, :9], own[0]) and np.array_equal(lse[:, :, :9], own[1])
    assert not o[:, :, 9:].any() and np.all(lse[:, :, 9:] == -np.inf)
    with pytest.raises(ValueError, match="cu_seqlens_q ends at 12; up to the tensor's 11 rows are accepted"):
        heddle.attention(q, k, v, **{**options, "cu_seqlens_q": np.array([0, 4, 12])})
