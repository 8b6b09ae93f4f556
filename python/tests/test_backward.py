"""The backward against gradients in NumPy's float64: one call, plans, where results go, and what is refused."""

import gc
import weakref

import numpy as np
import pytest

import heddle
from inputs import inputs

Q, K, V = inputs()
RANDOM = np.random.default_rng(7)
D_O = RANDOM.standard_normal((2, 4, 13, 8), np.float32)
D_LSE = RANDOM.standard_normal((2, 4, 13), np.float32)
SLOPES = np.array([0.5, -0.25, 0.125, 1], np.float32)
SINKS = np.array([0, 1, -1, 2], np.float32)
ROWS, KEYS = np.arange(13)[:, None], np.arange(17)


class Case:
    """An attention and its backward in float64, from the formulas: t and dt/ds of s, the mask, the weights."""

    def __init__(self, q, k, v, d_o, d_lse=None, scale=None, score=None, mask=True, weight=1.0, sinks=None):
        group = q.shape[1] // k.shape[1]
        self.shape = k.shape
        q, k, v, d_o = (x.astype(np.float64) for x in (q, k.repeat(group, 1), v.repeat(group, 1), d_o))
        scale = q.shape[3] ** -0.5 if scale is None else scale
        s = scale * q @ k.transpose(0, 1, 3, 2)
        t, slope = (s, 1.0) if score is None else score(s)
        t = np.where(mask, t, -np.inf)
        lse = np.logaddexp.reduce(t, -1) if sinks is None else np.logaddexp(
            np.logaddexp.reduce(t, -1), sinks.astype(np.float64)[:, None])
        p = np.exp(t - lse[..., None])
        self.o, self.lse = (p * weight) @ v, lse
        d_weighted = d_o @ v.transpose(0, 1, 3, 2)
        delta = (d_o * self.o).sum(-1) - (0 if d_lse is None else d_lse)
        self.d_t = p * (weight * d_weighted - delta[..., None])
        d_s = self.d_t * slope
        self.d_weight = p * d_weighted
        self.s = s
        self.dq = scale * d_s @ k
        self.dk = self.of_group(scale * d_s.transpose(0, 1, 3, 2) @ q)
        self.dv = self.of_group((p * weight).transpose(0, 1, 3, 2) @ d_o)
        self.d_sinks = None if sinks is None else -(np.exp(sinks[:, None] - lse) * delta).sum((0, 2))

    def of_group(self, x):
        batch, heads, length, _ = self.shape
        return x.reshape(batch, heads, -1, length, x.shape[-1]).sum(2)


def close(got, want, tolerance=2e-5):
    np.testing.assert_allclose(got, want, atol=tolerance * max(1, np.abs(want).max()), rtol=tolerance)


def forward(**options):
    return heddle.attention(Q, K, V, return_lse=True, **options)


def backward(o, lse, d_lse=None, **options):
    return heddle.attention_backward(Q, K, V, o, lse, D_O, d_lse, **options)


def alibi(score, b, h, q_idx, kv_idx):
    return score + SLOPES[h] * (kv_idx - q_idx)


def alibi_score(s):
    return s + SLOPES.astype(np.float64)[:, None, None] * (KEYS - ROWS), 1.0


def all_close(gradients, want):
    for name in ("dq", "dk", "dv"):
        close(getattr(gradients, name), getattr(want, name))


def test_plain_attention():
    o, lse = forward(scale=0.3)
    all_close(backward(o, lse, scale=0.3), Case(Q, K, V, D_O, scale=0.3))


def test_an_incoming_gradient_of_lse():
    o, lse = forward()
    all_close(backward(o, lse, D_LSE), Case(Q, K, V, D_O, D_LSE))


def test_slopes_sinks_and_a_mask():
    options = {"score_mod": alibi, "mask_mod": heddle.mods.causal(), "sinks": SINKS}
    o, lse = forward(**options)
    got = backward(o, lse, d_sinks=True, d_captures=[SLOPES], **options)
    want = Case(Q, K, V, D_O, score=alibi_score, mask=KEYS <= ROWS, sinks=SINKS)
    all_close(got, want)
    close(got.d_sinks, want.d_sinks)
    close(got.of(SLOPES), (want.d_t * (KEYS - ROWS)).sum((0, 2, 3)))
    assert got.of(SLOPES) is got.d_captures["SLOPES"] and repr(got).endswith("dv, d_sinks, d_captures['SLOPES']>")


def test_a_param():
    options = {"score_mod": "cap * tanh(score / cap)", "params": {"cap": 1.5}}
    o, lse = forward(**options)
    got = backward(o, lse, d_params=["cap"], **options)
    want = Case(Q, K, V, D_O, score=lambda s: (1.5 * np.tanh(s / 1.5), 1 - np.tanh(s / 1.5) ** 2))
    all_close(got, want)
    x = want.s / 1.5
    close(got.d_params["cap"], (want.d_t * (np.tanh(x) - x * (1 - np.tanh(x) ** 2))).sum())


def test_a_gate_on_the_weights():
    gate = RANDOM.standard_normal((4, 17)).astype(np.float32)
    options = {"weight_mod": "gate[h, kv_idx]", "captures": {"gate": gate}}
    o, lse = forward(**options)
    got = backward(o, lse, d_captures=["gate"], **options)
    want = Case(Q, K, V, D_O, weight=gate[:, None, :].astype(np.float64))
    all_close(got, want)
    close(got.d_captures["gate"], want.d_weight.sum((0, 2)))


def test_a_table_read_through_another_array():
    table, ids = RANDOM.standard_normal(6), np.array([0, 3, 5] * 6, np.int32)[:17]
    options = {"score_mod": lambda score, b, h, q_idx, kv_idx: score + table[ids[kv_idx]]}
    o, lse = forward(**options)
    got = backward(o, lse, d_captures=[table], **options).of(table)
    want = Case(Q, K, V, D_O, score=lambda s: (s + table[ids], 1.0)).d_t.sum((0, 1, 2))
    assert got.dtype == np.float64 and got[1] == got[2] == got[4] == 0
    close(got, [want[ids == i].sum() for i in range(6)])


def test_normalizer_sigmoid():
    o = heddle.attention(Q, K, V, normalizer="sigmoid")
    got = backward(o, None, normalizer="sigmoid")
    k, v = (x.repeat(2, 1).astype(np.float64) for x in (K, V))
    s = 8**-0.5 * Q @ k.transpose(0, 1, 3, 2)
    p = 1 / (1 + np.exp(-s))
    close(got.dq, 8**-0.5 * (p * (1 - p) * (D_O @ v.transpose(0, 1, 3, 2))) @ k)


def test_float64():
    q, k, v = (x.astype(np.float64) for x in (Q, K, V))
    o, lse = heddle.attention(q, k, v, return_lse=True)
    got = heddle.attention_backward(q, k, v, o, lse, D_O.astype(np.float64))
    want = Case(q, k, v, D_O)
    assert got.dq.dtype == np.float64
    close(got.dq, want.dq, 1e-13)
    close(got.dk, want.dk, 1e-13)


def test_bfloat16():
    q, k, v, d_o = (heddle.Tensor.of(x).to("bfloat16") for x in (Q, K, V, D_O))
    o, lse = heddle.attention(q, k, v, return_lse=True)
    got = heddle.attention_backward(q, k, v, o, lse, d_o)
    want = Case(*(np.asarray(x) for x in (q, k, v, d_o)))
    assert got.dk.dtype == "bfloat16"
    close(np.asarray(got.dk), want.dk, 0.02)


def test_batch_1_of_keys_has_the_sum():
    o, lse = heddle.attention(Q, K[:1], V[:1], return_lse=True)
    got = heddle.attention_backward(Q, K[:1], V[:1], o, lse, D_O)
    want = Case(Q, np.repeat(K[:1], 2, 0), np.repeat(V[:1], 2, 0), D_O)
    close(got.dk, want.dk.sum(0, keepdims=True))
    close(got.dv, want.dv.sum(0, keepdims=True))


def test_packed_sequences():
    q, k, v = (np.ascontiguousarray(x[:1]) for x in (Q, K, V))
    offsets_q, offsets_kv = np.array([0, 5, 13], np.int32), np.array([0, 9, 17], np.int32)
    options = {"cu_seqlens_q": offsets_q, "cu_seqlens_kv": offsets_kv}
    o, lse = heddle.attention(q, k, v, return_lse=True, **options)
    got = heddle.attention_backward(q, k, v, o, lse, D_O[:1], **options)
    mask = (ROWS < 5) == (KEYS < 9)
    all_close(got, Case(q, k, v, D_O[:1], mask=mask))


def test_only_what_is_asked_for():
    o, lse = forward(score_mod=alibi)
    everything = backward(o, lse, score_mod=alibi)
    got = backward(o, lse, score_mod=alibi, dq=False, dv=False)
    np.testing.assert_array_equal(got.dk, everything.dk)
    assert got.dq is got.dv is got.d_sinks is None and not got.d_captures and not got.d_params
    stages = heddle.explain_backward(Q, K, V, o, lse, D_O, score_mod=alibi, dq=False, dv=False).text
    assert "-> dk from" in stages
    with pytest.raises(KeyError):
        got.of(SLOPES)


def test_where_results_go():
    o, lse = forward(score_mod=alibi, sinks=SINKS)
    options = {"score_mod": alibi, "sinks": SINKS}
    want = backward(o, lse, d_sinks=True, d_captures=["SLOPES"], **options)
    dq = np.zeros((2, 13, 4, 8), np.float64).transpose(0, 2, 1, 3)
    d_sinks, d_slopes = np.zeros(8, np.float32)[::2], np.zeros(4, np.float64)
    got = backward(o, lse, dq=dq, dv=False, d_sinks=d_sinks, d_captures={"SLOPES": d_slopes}, **options)
    assert got.dq is dq and got.d_sinks is d_sinks and got.d_captures["SLOPES"] is d_slopes and got.dv is None
    assert got.of(SLOPES) is d_slopes
    np.testing.assert_array_equal(got.dk, want.dk)
    for written, one in ((dq, want.dq), (d_sinks, want.d_sinks), (d_slopes, want.d_captures["SLOPES"])):
        np.testing.assert_allclose(written, one, atol=1e-6, rtol=1e-6)


def test_arrays_by_dlpack():
    o, lse = forward()
    held = [heddle.Tensor.of(x) for x in (Q, K, V, o, lse, D_O)]
    np.testing.assert_array_equal(heddle.attention_backward(*held).dv, backward(o, lse).dv)


def test_the_check():
    options = {"score_mod": alibi, "mask_mod": heddle.mods.causal(), "sinks": SINKS}
    o, lse = forward(**options)
    got = backward(o, lse, D_LSE, d_sinks=True, d_captures=[SLOPES], **options)
    report = heddle.check_backward(Q, K, V, o, lse, D_O, D_LSE, gradients=got, **options)
    names = {"dq", "dk", "dv", "d_sinks", "d_captures['SLOPES']"}
    assert report and report.passed and set(report.tensors) == names and "d_sinks" in str(report)
    got.of(SLOPES)[2] *= 1.01
    report = heddle.check_backward(Q, K, V, o, lse, D_O, D_LSE, gradients=got, **options)
    assert not report and {name for name in names if not report.tensors[name].passed} == {"d_captures['SLOPES']"}


def refused(exception, sentence, o=None, lse=None, **options):
    given, given_lse = forward(**{
        name: x for name, x in options.items() if name in ("score_mod", "mask_mod", "sinks", "captures")})
    with pytest.raises(exception, match=sentence):
        backward(given if o is None else o, given_lse if lse is None else lse, **options)


def test_wrong_arguments():
    refused(TypeError, "lse is 3; an array", lse=3)
    refused(TypeError, "o is 'o'; an array", o="o")
    refused(TypeError, "d_lse is 0.5; an array", d_lse=0.5)
    refused(TypeError, "dq is 1; a bool, or an array that can be written, is accepted", dq=1)
    refused(TypeError, "d_sinks is None; a bool", d_sinks=None)
    refused(TypeError, "'masks' is no option", masks=3)
    refused(TypeError, "deterministic is 1.5; a bool", deterministic=1.5)
    frozen = np.zeros_like(Q)
    frozen.flags.writeable = False
    refused(ValueError, "dq is read-only; an array that can be written", dq=frozen)
    refused(ValueError, "dq has shape", dq=np.zeros((1, 1, 1, 1), np.float32))
    refused(ValueError, "no gradient is asked for", dq=False, dk=False, dv=False)
    refused(ValueError, "d_sinks is given, but there are no sinks", d_sinks=True)
    refused(ValueError, "dk overlaps k in memory", dk=K)
    o, _ = forward()
    with pytest.raises(ValueError, match="lse is not given; the backward of softmax"):
        backward(o, None)
    with pytest.raises(ValueError, match="d_o has shape"):
        heddle.attention_backward(Q, K, V, o, forward()[1], D_O[:, :, :4])


def test_wrong_captures_and_params():
    ids = np.zeros(17, np.int32)

    def of_ids(score, b, h, q_idx, kv_idx):
        return score + ids[kv_idx] * SLOPES[h]

    refused(ValueError, "d_captures has an array that no mod reads; the captures are 'SLOPES', 'ids'",
            score_mod=of_ids, d_captures=[SINKS])
    refused(ValueError, r"d_captures has an array that no mod reads; the captures are none", d_captures=[SINKS])
    refused(ValueError, r"d_captures\['slope'\] is given, but no mod reads it; 'SLOPES', 'ids' is accepted",
            score_mod=of_ids, d_captures=["slope"])
    refused(ValueError, "capture 'ids' is i32; gradients of floating captures", score_mod=of_ids, d_captures=[ids])
    refused(ValueError, "only the mask reads capture 'SLOPES'", d_captures=[SLOPES],
            mask_mod=lambda b, h, q_idx, kv_idx: SLOPES[h] > -1)
    refused(TypeError, "d_captures is 'SLOPES'; a list of names", score_mod=alibi, d_captures="SLOPES")
    refused(TypeError, "an element of d_captures is 3; a name, or an array", score_mod=alibi, d_captures=[3])
    refused(TypeError, r"d_captures\['SLOPES'\] is True; an array", score_mod=alibi, d_captures={"SLOPES": True})
    refused(ValueError, r"d_params\['cap'\] is given, but no mod reads it", d_params=["cap"])
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    refused(ValueError, r"d_captures\['SLOPES'\] is read-only", score_mod=alibi, d_captures={"SLOPES": frozen})


def test_a_plan_runs_as_the_call_does():
    options = {"score_mod": alibi, "mask_mod": heddle.mods.causal(), "sinks": SINKS}
    o, lse = forward(**options)
    plan = heddle.BackwardPlan(Q, K, V, o, lse, D_O, dv=False, d_sinks=True, d_captures=[SLOPES], **options)
    for d_o in (D_O, 2 * D_O):
        got = plan.run(Q, K, V, o, lse, d_o, workspace=plan.workspace())
        want = heddle.attention_backward(Q, K, V, o, lse, d_o, d_sinks=True, d_captures=[SLOPES], **options)
        np.testing.assert_array_equal(got.dk, want.dk)
        np.testing.assert_array_equal(got.d_sinks, want.d_sinks)
        np.testing.assert_array_equal(got.of(SLOPES), want.of(SLOPES))
        assert got.dv is None
    dq, d_slopes = np.zeros_like(Q), np.zeros_like(SLOPES)
    got = plan.run(Q, K, V, o, lse, D_O, dq=dq, d_captures={"SLOPES": d_slopes})
    assert got.dq is dq and got.d_captures["SLOPES"] is d_slopes and dq.any() and d_slopes.any()
    assert "backward" in plan.explain() and plan.explain_json()["plan"]["backend"] == plan.backend
    assert plan.block_mask is not None and repr(plan).startswith("<heddle.BackwardPlan on ")


def test_other_values_in_a_run_of_a_plan():
    o, lse = forward(score_mod=alibi)
    plan = heddle.BackwardPlan(Q, K, V, o, lse, D_O, score_mod=alibi, d_captures=[SLOPES])
    other = -SLOPES
    changed = heddle.attention(Q, K, V, score_mod=heddle.mods.alibi(other), return_lse=True)
    got = plan.run(Q, K, V, *changed, D_O, captures={"SLOPES": other})
    want = heddle.attention_backward(
        Q, K, V, *changed, D_O, score_mod=lambda score, b, h, q_idx, kv_idx: score + other[h] * (kv_idx - q_idx),
        d_captures=[other])
    np.testing.assert_array_equal(got.of(other), want.of(other))
    np.testing.assert_array_equal(got.dq, want.dq)
    with pytest.raises(ValueError, match="no capture 'slope'; it has SLOPES"):
        plan.run(Q, K, V, o, lse, D_O, captures={"slope": other})
    with pytest.raises(ValueError, match="d_lse is given; the plan was made without it"):
        plan.run(Q, K, V, o, lse, D_O, D_LSE)
    with pytest.raises(ValueError, match=r"d_captures\['x'\]"):
        plan.run(Q, K, V, o, lse, D_O, d_captures={"x": np.zeros(4, np.float32)})
    with pytest.raises(ValueError, match="q"):
        plan.run(Q[:, :, :4], K, V, o, lse, D_O)
    with pytest.raises(TypeError, match="workspace is 3"):
        plan.run(Q, K, V, o, lse, D_O, workspace=3)


def test_update_of_a_plan():
    ids, other = np.array([0] * 5 + [1] * 12, np.int32), np.array([0] * 11 + [1] * 6, np.int32)
    o, lse = forward(mask_mod=heddle.mods.documents(other))
    plan = heddle.BackwardPlan(Q, K, V, o, lse, D_O, mask_mod=heddle.mods.documents(ids))
    plan.update(captures={"ids": other})
    want = backward(o, lse, mask_mod=heddle.mods.documents(other))
    np.testing.assert_array_equal(plan.run(Q, K, V, o, lse, D_O).dk, want.dk)


def test_what_a_plan_of_a_backward_keeps_alive():
    q, k, v = inputs()
    slopes = np.zeros(4, np.float32)
    o, lse = heddle.attention(q, k, v, score_mod=heddle.mods.alibi(slopes), return_lse=True)
    first, kept = [weakref.ref(x) for x in (q, k, v, o, lse)], weakref.ref(slopes)
    plan = heddle.BackwardPlan(q, k, v, o, lse, D_O, score_mod=heddle.mods.alibi(slopes), d_captures=[slopes])
    del q, k, v, o, lse, slopes
    assert all(one() is None for one in first) and kept() is not None
    del plan
    gc.collect()
    assert kept() is None


def test_calls_keep_nothing():
    o, lse = forward(score_mod=alibi)
    backward(o, lse, score_mod=alibi, d_captures=[SLOPES])
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        backward(o, lse, score_mod=alibi, d_captures=[SLOPES])
    gc.collect()
    assert len(gc.get_objects()) <= before + 5


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_one_array_under_two_names(dtype):
    q, k, v, d_o = np.random.default_rng(3).standard_normal((4, 1, 2, 6, 4), np.float32)
    table = np.array([1.0, 2.0])
    table = heddle.Tensor.of(table).to(dtype) if dtype == "bfloat16" else table.astype(dtype)
    score = "score * x[h] + y[h] * kv_idx"
    options = {"score_mod": score, "weight_mod": "z[h]", "mask_mod": "m[h] > 0.0"}
    captures = dict.fromkeys("xyzm", table)
    o, lse = heddle.attention(q, k, v, return_lse=True, captures=captures, **options)
    whole = heddle.attention_backward(q, k, v, o, lse, d_o, captures=captures, d_captures=[table], **options)
    assert sorted(whole.d_captures) == ["x", "y", "z"]  # what a mask reads has no gradient
    distinct = {name: np.array([1.0, 2.0], np.float32) for name in "xyzm"}
    apart = heddle.attention_backward(q, k, v, o, lse, d_o, captures=distinct, d_captures=["x", "y", "z"], **options)
    got = whole.of(table)
    got = got.to("float32").numpy() if dtype == "bfloat16" else got
    np.testing.assert_allclose(got, sum(apart.d_captures.values()), rtol=1e-5,
                               atol=2e-2 if dtype == "bfloat16" else 1e-6)
    plan = heddle.BackwardPlan(q, k, v, o, lse, d_o, captures=captures, d_captures=[table], **options)
    planned = plan.run(q, k, v, o, lse, d_o).of(table)
    assert np.array_equal(np.asarray(planned.to("float32") if dtype == "bfloat16" else planned), got)


def test_lse_rest():
    """Rows that a mask of finfo.min hides are means: p is 1 / 17, which lse alone cannot say."""
    low = np.full((13, 17), np.finfo(np.float32).min)
    options = {"score_mod": lambda score, b, h, q_idx, kv_idx: score + low[q_idx, kv_idx]}
    out, lse, rest = np.empty((2, 4, 13, V.shape[3]), np.float32), *np.full((2, 2, 4, 13), np.nan, np.float32)
    heddle.attention(Q, K, V, out=out, lse=lse, lse_rest=rest, **options)
    assert (lse == low[0, 0]).all()
    np.testing.assert_allclose(rest, np.log(17), rtol=1e-6)
    assert heddle.check(Q, K, V, out, lse, lse_rest=rest, **options)
    assert not heddle.check(Q, K, V, out, lse, lse_rest=0 * rest, **options)
    want = np.broadcast_to(D_O.reshape(2, -1, 4 // K.shape[1] * 13, V.shape[3]).sum(2, keepdims=True) / 17, V.shape)
    alone = heddle.attention_backward(Q, K, V, out, lse, D_O, **options)
    both = heddle.attention_backward(Q, K, V, out, lse, D_O, lse_rest=rest, **options)
    np.testing.assert_allclose(both.dv, want, atol=1e-5)
    np.testing.assert_allclose(alone.dv, 17 * want, atol=1e-4)
    assert heddle.check_backward(Q, K, V, out, lse, D_O, lse_rest=rest, gradients=both, **options)
    assert not heddle.check_backward(Q, K, V, out, lse, D_O, gradients=alone, **options)
    plan = heddle.BackwardPlan(Q, K, V, out, lse, D_O, lse_rest=rest, **options)
    assert (plan.run(Q, K, V, out, lse, D_O, lse_rest=rest).dv == both.dv).all()
    with pytest.raises(ValueError, match="lse_rest is not given; the plan was made with it"):
        plan.run(Q, K, V, out, lse, D_O)
    with pytest.raises(ValueError, match="lse_rest is given without out"):
        heddle.attention(Q, K, V, lse_rest=rest)
    with pytest.raises(ValueError, match="lse_rest has shape"):
        heddle.attention_backward(Q, K, V, out, lse, D_O, lse_rest=rest[:, :, 1:], **options)
    with pytest.raises(TypeError, match="lse_rest"):
        heddle.attention_backward(Q, K, V, out, lse, D_O, lse_rest="rest", **options)
