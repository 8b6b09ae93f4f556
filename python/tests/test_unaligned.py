"""Arrays at odd addresses, as fields of packed records and views of buffers are: calls copy them."""

import numpy as np
import pytest

import heddle


def odd(values):
    """The same values one byte behind an aligned address."""
    values = np.ascontiguousarray(values)
    memory = np.zeros(values.nbytes + 1, np.uint8)
    memory[1:] = values.view(np.uint8).ravel()
    made = memory[1:].view(values.dtype).reshape(values.shape)
    assert not made.flags.aligned
    return made


random = np.random.default_rng(0)
Q, K, V, D_O = random.standard_normal((4, 1, 2, 9, 8)).astype(np.float32)
SLOPES = random.standard_normal(2).astype(np.float32)
IDS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2], np.int64)


def mods_of(slopes, ids):
    return {"score_mod": lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx),
            "mask_mod": lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx]}


def test_calls():
    at_odd = mods_of(odd(SLOPES), odd(IDS))
    want, lse = heddle.attention(Q, K, V, return_lse=True, **mods_of(SLOPES, IDS))
    for _ in range(2):  # traced, then recognised
        np.testing.assert_array_equal(heddle.attention(Q, K, V, **at_odd), want)
    np.testing.assert_array_equal(heddle.attention(odd(Q), K, odd(V), **at_odd), want)
    assert heddle.check(Q, K, V, want, lse, **at_odd)
    assert "kv_idx" in heddle.explain(Q, K, V, **at_odd).text


def test_gradients():
    slopes = odd(SLOPES)
    o, lse = heddle.attention(Q, K, V, return_lse=True, **mods_of(SLOPES, IDS))
    want = heddle.attention_backward(Q, K, V, o, lse, D_O, d_captures=[SLOPES], **mods_of(SLOPES, IDS))
    got = heddle.attention_backward(Q, K, V, o, lse, D_O, d_captures=[slopes], **mods_of(slopes, odd(IDS)))
    np.testing.assert_array_equal(got.of(slopes), want.of(SLOPES))
    np.testing.assert_array_equal(got.dk, want.dk)


def test_block_masks():
    ids = odd(IDS)
    mask = heddle.BlockMask.build(mods_of(SLOPES, ids)["mask_mod"], 9, 9, heads=2, block=1)
    assert mask == heddle.BlockMask.build(mods_of(SLOPES, IDS)["mask_mod"], 9, 9, heads=2, block=1)
    mask.check_current()
    want = heddle.attention(Q, K, V, mask_mod=mods_of(SLOPES, IDS)["mask_mod"])
    np.testing.assert_allclose(heddle.attention(Q, K, V, block_mask=mask), want, atol=1e-6)
    ids[0] = 5
    with pytest.raises(ValueError, match="capture 'ids' differs"):
        mask.check_current()
    mask.update()
    assert mask.row(0, 0, 0) == [heddle.Run(0, 1, True)]


def test_a_plan_refuses_them():  # its runs would not see what changes in the array
    with pytest.raises(ValueError, match="capture 'slopes' is f32 .* not aligned to 4 bytes"):
        heddle.AttentionPlan(Q, K, V, **mods_of(odd(SLOPES), IDS))


def other_order(values):
    return values.astype(values.dtype.newbyteorder())


def field(values):
    """The same values as a field of records of an odd size."""
    records = np.zeros(values.shape, [("value", values.dtype), ("more", np.uint8)])
    records["value"] = values
    return records["value"]


@pytest.mark.parametrize("kind", [other_order, field])
def test_arrays_that_numpy_does_not_export(kind):
    want, lse = heddle.attention(Q, K, V, return_lse=True, **mods_of(SLOPES, IDS))
    given = mods_of(kind(SLOPES), kind(IDS))
    for _ in range(2):
        np.testing.assert_array_equal(heddle.attention(kind(Q), K, kind(V), **given), want)
    assert heddle.check(kind(Q), K, V, kind(want), kind(lse), **given)
    mask = heddle.BlockMask.build(mods_of(SLOPES, kind(IDS))["mask_mod"], 9, 9, heads=2, block=1)
    assert mask == heddle.BlockMask.build(mods_of(SLOPES, IDS)["mask_mod"], 9, 9, heads=2, block=1)
    parts = heddle.merge_states([kind(want), want], [kind(lse), lse])
    np.testing.assert_allclose(parts, want, atol=1e-6)
    with pytest.raises(TypeError, match="capture 'slopes' is of type ndarray"):
        heddle.AttentionPlan(Q, K, V, **mods_of(kind(SLOPES), IDS))
    with pytest.raises((TypeError, ValueError), match="^out "):
        heddle.attention(Q, K, V, out=kind(Q))


@pytest.mark.parametrize("kind", [other_order, field, odd])
def test_files(kind, tmp_path):
    heddle.save(tmp_path / "x.safetensors", {"ids": kind(IDS)})
    np.testing.assert_array_equal(heddle.load(tmp_path / "x.safetensors").tensors["ids"], IDS)


def test_masked_arrays_are_refused():
    masked = np.ma.masked_greater(SLOPES, 0)
    with pytest.raises(TypeError, match=r"capture 'slopes' is of type MaskedArray .*; x.filled\(\)"):
        heddle.attention(Q, K, V, **mods_of(masked, IDS))
    assert heddle.attention(Q, K, V, **mods_of(masked.filled(0), IDS)).shape == Q.shape
