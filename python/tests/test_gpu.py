"""Memory of a GPU: in, out, plans with a workspace, masks. Skipped with the reason where there is none."""

import numpy as np
import pytest

import heddle
from inputs import inputs

pytestmark = pytest.mark.skipif(bool(heddle.missing("cuda")), reason=heddle.missing("cuda"))


def on_gpu(arrays, dtype="bfloat16"):
    return [heddle.Tensor.of(x).to(dtype).on("cuda") for x in arrays]


def test_results_stay_on_the_gpu():
    q, k, v = on_gpu(inputs(q_len=70, kv_len=200, qk_dim=64, v_dim=64))
    o, lse = heddle.attention(q, k, v, return_lse=True)
    assert o.device == lse.device == q.device == "cuda:0" and o.dtype == "bfloat16" and lse.dtype == "float32"
    assert heddle.check(q, k, v, o, lse)
    assert heddle.check(q.cpu(), k.cpu(), v.cpu(), o.cpu())
    with pytest.raises(NotImplementedError, match="cpu.. copies it first"):
        o.numpy()
    with pytest.raises(NotImplementedError, match="cpu.. copies it first"):
        np.asarray(o)
    out = heddle.Tensor.empty(o.shape, "float16", "cuda")
    assert heddle.attention(q, k, v, out=out) is out and heddle.check(q, k, v, out)


def test_plans_mods_and_masks():
    q, k, v = on_gpu(inputs(q_len=300, kv_len=300, qk_dim=64, v_dim=64))
    ids = (np.arange(300) // 100).astype(np.int32)
    (slopes,) = on_gpu([np.arange(4.0)], "float32")
    (ids,) = on_gpu([ids], "int32")
    options = {"score_mod": heddle.mods.alibi(slopes), "mask_mod": heddle.mods.documents(ids)}
    plan = heddle.AttentionPlan(q, k, v, **options)
    assert plan.backend == "cuda" and plan.block_mask.density < 1
    workspace = plan.workspace()
    for _ in range(3):
        o = plan.run(q, k, v, workspace=workspace)
    assert heddle.check(q, k, v, o, **options)
    (steeper,) = on_gpu([np.arange(4.0) * 2], "float32")
    o = plan.run(q, k, v, workspace=workspace, captures={"slopes": steeper})
    assert heddle.check(q, k, v, o, **{**options, "score_mod": heddle.mods.alibi(steeper)})


def test_devices_do_not_mix():
    q, k, v = on_gpu(inputs(qk_dim=64, v_dim=64))
    with pytest.raises(ValueError, match="k"):
        heddle.attention(q, k.cpu(), v)
