"""Plans: run as attention does, bring other values, explain themselves."""

import gc
import threading
import weakref

import numpy as np
import pytest

import heddle
from inputs import inputs


def test_runs_as_attention():
    q, k, v = inputs()
    for options in ({}, {"mask_mod": heddle.mods.causal(), "scale": 0.5}, {"normalizer": "sigmoid"}):
        plan = heddle.AttentionPlan(q, k, v, **options)
        np.testing.assert_array_equal(plan.run(q, k, v), heddle.attention(q, k, v, **options))
        np.testing.assert_array_equal(plan.run(2 * q, k, v), heddle.attention(2 * q, k, v, **options))


def test_results_and_where_they_go():
    q, k, v = inputs()
    want, want_lse = heddle.attention(q, k, v, return_lse=True)
    plan = heddle.AttentionPlan(q, k, v, return_lse=True)
    o, lse = plan.run(q, k, v)
    np.testing.assert_array_equal(o, want)
    np.testing.assert_array_equal(lse, want_lse)
    out, out_lse = np.zeros_like(want), np.zeros_like(want_lse)
    got = plan.run(q, k, v, out=out, lse=out_lse, workspace=plan.workspace())
    assert got[0] is out and got[1] is out_lse
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(out_lse, want_lse)
    wide = np.empty(want.shape, np.float64)
    np.testing.assert_allclose(heddle.AttentionPlan(q, k, v, out=wide).run(q, k, v, out=wide), want, atol=1e-6)
    assert heddle.AttentionPlan(q, k, v, out=wide).run(q, k, v).dtype == np.float64


def test_a_workspace_that_is_too_small():
    q, k, v = inputs()
    plan = heddle.AttentionPlan(q, k, v)
    assert plan.workspace().nbytes == plan.workspace_bytes > 0
    with pytest.raises(ValueError, match=f"workspace has 64 bytes on CPU 0; {plan.workspace_bytes} on CPU 0"):
        plan.run(q, k, v, workspace=np.empty(64, np.uint8))
    with pytest.raises(ValueError, match="gaps"):
        plan.run(q, k, v, workspace=np.empty(4 * plan.workspace_bytes, np.uint8)[::2])
    off = heddle.Tensor.empty((plan.workspace_bytes + 64,), "uint8").numpy()[1:]
    with pytest.raises(ValueError, match="64"):
        plan.run(q, k, v, workspace=off)


def test_other_values_in_a_run():
    q, k, v = inputs()
    slopes = np.arange(4, dtype=np.float32)
    plan = heddle.AttentionPlan(
        q, k, v, score_mod=heddle.mods.alibi(slopes), weight_mod="w", params={"w": 1.0}, sinks=np.zeros(4, np.float32))

    def want(slopes, w=1.0, sinks=0):
        return heddle.attention(
            q, k, v, score_mod=heddle.mods.alibi(slopes), weight_mod="w", params={"w": w},
            sinks=np.full(4, sinks, np.float32))

    np.testing.assert_array_equal(plan.run(q, k, v), want(slopes))
    np.testing.assert_array_equal(plan.run(q, k, v, captures={"slopes": -slopes}), want(-slopes))
    np.testing.assert_array_equal(plan.run(q, k, v, params={"w": 2.0}), want(slopes, w=2.0))
    np.testing.assert_array_equal(plan.run(q, k, v, sinks=np.ones(4, np.float32)), want(slopes, sinks=1))
    slopes *= 3  # read by each run
    np.testing.assert_array_equal(plan.run(q, k, v), want(slopes))
    with pytest.raises(ValueError, match="no capture 'slope'; it has slopes"):
        plan.run(q, k, v, captures={"slope": slopes})
    with pytest.raises(ValueError, match="slopes"):
        plan.run(q, k, v, captures={"slopes": np.zeros(3, np.float32)})
    with pytest.raises(TypeError, match="capture 'slopes' is 'x'"):
        plan.run(q, k, v, captures={"slopes": "x"})
    with pytest.raises(TypeError, match="sinks is 3"):
        plan.run(q, k, v, sinks=3)


def test_update_of_the_mask():
    q, k, v = inputs()
    ids = np.array([0] * 5 + [1] * 12, np.int32)
    plan = heddle.AttentionPlan(q, k, v, mask_mod=heddle.mods.documents(ids))
    other = np.array([0] * 11 + [1] * 6, np.int32)
    with pytest.raises(ValueError, match="ids"):
        plan.run(q, k, v, captures={"ids": other})
    plan.update(captures={"ids": other})
    want = heddle.attention(q, k, v, mask_mod=heddle.mods.documents(other))
    np.testing.assert_array_equal(plan.run(q, k, v), want)
    assert plan.block_mask == heddle.BlockMask.build(
        heddle.mods.documents(other), 13, 17, batch=2, heads=4, block=plan.block_mask.block)
    with pytest.raises(ValueError, match="id"):
        plan.update(captures={"id": other})
    np.testing.assert_array_equal(plan.run(q, k, v), want)


def test_a_given_block_mask_and_none():
    q, k, v = inputs()
    mask = heddle.BlockMask.build(heddle.mods.causal(), 13, 17, batch=2, heads=4, block=8)
    plan = heddle.AttentionPlan(q, k, v, block_mask=mask)
    np.testing.assert_allclose(plan.run(q, k, v), heddle.attention(q, k, v, mask_mod=heddle.mods.causal()), atol=1e-6)
    assert plan.block_mask == mask
    assert heddle.AttentionPlan(q, k, v).block_mask is None


def test_other_shapes_and_types_are_refused():
    q, k, v = inputs()
    plan = heddle.AttentionPlan(q, k, v)
    with pytest.raises(ValueError, match="q"):
        plan.run(q[:, :, :5], k, v)
    with pytest.raises(ValueError, match="k"):
        plan.run(q, k.astype(np.float64), v)
    with pytest.raises(ValueError, match="lse"):
        plan.run(q, k, v, lse=np.empty((2, 4, 13), np.float32))
    with pytest.raises(TypeError, match="'masks' is no option"):
        heddle.AttentionPlan(q, k, v, masks=1)


def test_what_a_plan_keeps_alive():
    q, k, v = inputs()
    slopes, ids = np.zeros(4, np.float32), np.zeros(17, np.int32)
    first, kept = [weakref.ref(x) for x in (q, k, v)], [weakref.ref(x) for x in (slopes, ids)]
    plan = heddle.AttentionPlan(q, k, v, score_mod=heddle.mods.alibi(slopes), mask_mod=heddle.mods.documents(ids))
    del q, k, v, slopes, ids
    assert all(one() is None for one in first) and all(one() is not None for one in kept)
    plan.run(*inputs())
    del plan
    gc.collect()
    assert all(one() is None for one in kept)


def test_explanations():
    q, k, v = inputs()
    plan = heddle.AttentionPlan(q, k, v, mask_mod=heddle.mods.causal())
    stages = plan.explain_json()
    assert plan.backend == stages["plan"]["backend"] == "cpu" and stages["problem"]["q_rows"] == 13
    assert "kv_idx <= q_idx" in plan.explain() and "cpu" in repr(plan)
    explanation = heddle.explain(q, k, v, mask_mod=heddle.mods.causal(), return_lse=True)
    assert explanation.picture.startswith("<svg") and heddle.explain(q, k, v).picture == ""
    assert explanation.stages["problem"]["lse"] and not stages["problem"]["lse"]
    assert explanation.text == str(explanation) and explanation.text.startswith("problem")
    reference = heddle.AttentionPlan(q, k, v, backend="reference")
    assert reference.backend == "reference"


def test_explanation_of_a_gpu_that_is_not_here():
    q = k = v = heddle.Tensor.empty((1, 8, 1024, 128), "bfloat16")
    stages = heddle.explain_on("h200", q, k, v, mask_mod=heddle.mods.causal()).stages
    assert stages["plan"]["backend"] == "cuda" and stages["mask"]["full"] > 0
    with pytest.raises(ValueError, match="h2000"):
        heddle.explain_on("h2000", q, k, v)


def test_tuning(tmp_path, monkeypatch):
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HEDDLE_TUNING", raising=False)
    q, k, v = inputs()

    def tuned(**options):
        return heddle.AttentionPlan(q, k, v, **options).explain_json()["tuned"]

    assert tuned() is None and tuned(tuning="off") is None and not (tmp_path / "cache").exists()
    measured = tuned(tuning="measure")
    assert measured["measured"] == "now" and len(measured["kernels"]) == 4
    assert tuned()["measured"] == tuned(tuning="measure")["measured"] == "before"
    assert tuned()["kernels"] == measured["kernels"]
    assert tuned(tuning="again")["measured"] == "now"
    np.testing.assert_allclose(heddle.attention(q, k, v, tuning="recorded"), heddle.attention(q, k, v, tuning="off"),
                               rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="tuning is 'fast'; 'automatic', 'off', 'recorded', 'measure' and 'again'"):
        tuned(tuning="fast")
    with pytest.raises(TypeError, match="tuning is 3; a str is accepted"):
        tuned(tuning=3)


def test_an_update_during_runs_of_other_threads():
    """Each call computes, or says that another thread is in the way: no memory is read that an update frees."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 700, 32)).astype(np.float32)
    plan = heddle.AttentionPlan(q, k, v, mask_mod="kv_idx < n", params={"n": 600})
    want, left, said = plan.run(q, k, v), [3], []

    def update():
        for _ in range(60):
            try:
                plan.update(params={"n": 600})
                assert plan.block_mask.density > 0 and "kv_idx" in plan.explain()
            except ValueError as error:
                said.append(str(error))
        left[0] -= 1

    threads = [threading.Thread(target=update) for _ in range(left[0])]
    for one in threads:
        one.start()
    while left[0] > 0:
        try:
            np.testing.assert_array_equal(plan.run(q, k, v), want)
        except ValueError as error:
            said.append(str(error))
    for one in threads:
        one.join()
    assert all("the plan is being" in text for text in said)
    np.testing.assert_array_equal(plan.run(q, k, v), want)
