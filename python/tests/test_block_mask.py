"""Block masks: block for block what the dense mask gives; PyTorch's lists; what changes and what does not."""

import numpy as np
import pytest

import heddle


def dense_classes(allowed, block):
    """'#', '+' or '.' for each block of a dense mask."""
    rows = []
    for i in range(0, allowed.shape[0], block[0]):
        tiles = [allowed[i : i + block[0], j : j + block[1]] for j in range(0, allowed.shape[1], block[1])]
        rows.append("".join("#" if tile.all() else "+" if tile.any() else "." for tile in tiles))
    return "\n".join(rows)


IDS = np.array([0] * 5 + [1] * 9 + [2] * 3, np.int32)
i, j = np.ogrid[:17, :17]
MASKS = {
    "causal": (lambda b, h, q_idx, kv_idx: kv_idx <= q_idx, j <= i),
    "window": ("abs(q_idx - kv_idx) <= w", abs(i - j) <= 3),
    "documents": (lambda b, h, q_idx, kv_idx: IDS[q_idx] == IDS[kv_idx], IDS[i] == IDS[j]),
    "everything": (None, np.ones((17, 17), bool)),
    "nothing": ("kv_idx < 0", np.zeros((17, 17), bool)),
}


@pytest.mark.parametrize("block", [(1, 1), (4, 4), (3, 5), (64, 16)])
@pytest.mark.parametrize("name", MASKS)
def test_equals_the_dense_mask(name, block):
    mod, allowed = MASKS[name]
    mask = heddle.BlockMask.build(mod, 17, 17, block=block, params={"w": 3})
    assert mask.text().rstrip("\n") == dense_classes(allowed, block)
    counts, shown = mask.statistics(), dense_classes(allowed, block)
    assert (counts["full"], counts["partial"], counts["empty"]) == tuple(shown.count(c) for c in "#+.")
    assert mask.density == pytest.approx(1 - shown.count(".") / (len(shown) - shown.count("\n")))


def test_shape_and_properties():
    mask = heddle.BlockMask.build("kv_idx <= q_idx + h", 8, 12, batch=2, heads=3, block=(4, 2), reals="f64")
    assert mask.shape == (2, 3, 8, 12) and mask.block == (4, 2) and mask.reals == "f64"
    assert mask.shared_by_batch and not mask.shared_by_heads and not mask.is_from_lists and not mask.is_transposed
    assert (mask.q_blocks(1), mask.kv_blocks(1)) == (2, 6)
    assert str(mask.mask_mod) == "kv_idx <= q_idx + h"
    allowed = np.arange(12) <= np.arange(8)[:, None] + 2
    assert mask.text(1, 2).rstrip("\n") == dense_classes(allowed, (4, 2))
    assert mask._repr_svg_().startswith("<svg") and "</svg>" in mask.svg(1, 2)


def test_lengths_packed_batches_and_starts():
    causal = lambda b, h, q_idx, kv_idx: kv_idx <= q_idx  # noqa: E731
    lengths = heddle.BlockMask.build(causal, q_lengths=[4, 8], kv_lengths=np.array([8, 6]), block=2)
    assert [one[1:4:2] for one in lengths.sequences] == [(4, 8), (8, 6)]
    assert lengths.text(0).splitlines() == ["+...", "#+.."]
    assert lengths.text(1).splitlines() == ["+..", "#+.", "##+", "###"]
    offsets = np.array([0, 4, 12], np.int64)
    packed = heddle.BlockMask.build(causal, cu_seqlens_q=offsets, cu_seqlens_kv=offsets, block=2)
    assert packed.sequences[1] == (4, 8, 4, 8, 0, 0) and packed.text(0).splitlines() == ["+.", "#+"]
    late = heddle.BlockMask.build(causal, 2, 8, q_start=6, block=2)
    assert str(late) == "###+"
    shard = heddle.BlockMask.build(causal, 4, 4, batch=2, q_start=[4, 0], kv_start=(0, 2), block=2)
    assert shard.text(0).splitlines() == ["##", "##"] and shard.text(1).splitlines() == ["..", "+."]


@pytest.mark.parametrize("name", MASKS)
def test_lists_and_back(name):
    mask = heddle.BlockMask.build(MASKS[name][0], 17, 17, batch=2, heads=3, block=4, params={"w": 3})
    lists = mask.to_lists()
    assert all(array.dtype == np.int32 for array in lists)
    again = heddle.BlockMask.from_lists(
        *lists, mask_mod=MASKS[name][0], q_len=17, kv_len=17, batch=2, heads=3, block=4, params={"w": 3})
    assert again == mask and again.is_from_lists


def test_lists_are_torchs():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    theirs = flex.create_block_mask(lambda b, h, q, kv: (kv <= q + h), 1, 2, 64, 96, device="cpu", BLOCK_SIZE=16)
    ours = heddle.BlockMask.build("kv_idx <= q_idx + h", 64, 96, heads=2, block=16)
    lists = [theirs.kv_num_blocks, theirs.kv_indices, theirs.full_kv_num_blocks, theirs.full_kv_indices]
    for theirs_counts, ours_counts in ((lists[0], ours.to_lists()[0]), (lists[2], ours.to_lists()[2])):
        np.testing.assert_array_equal(theirs_counts.numpy(), ours_counts)
    assert heddle.BlockMask.from_lists(*lists, mask_mod="kv_idx <= q_idx + h", q_len=64, kv_len=96, block=16) == ours


def test_transposed():
    mask = heddle.BlockMask.build("kv_idx <= q_idx", 8, 12, block=(2, 4))
    columns = mask.transposed()
    assert columns.is_transposed and columns.shape == (1, 1, 12, 8) and columns.block == (4, 2)
    assert columns.transposed() == mask and columns != mask and mask != "mask"
    turned = ["".join(line) for line in zip(*str(mask).splitlines())]
    assert str(columns).splitlines() == turned


def test_rows():
    mask = heddle.BlockMask.build("kv_idx <= q_idx", 8, 8, block=2)
    assert mask.row(0, 0, 1) == [(0, 1, True), (1, 2, False)]
    with pytest.raises(ValueError, match="4"):
        mask.row(0, 0, 4)


def test_update_changes_this_mask_and_no_plan():
    ids = np.array([0, 0, 1, 1], np.int32)
    mask = heddle.BlockMask.build(lambda b, h, q, kv: ids[q] == ids[kv], 4, 4, block=2)
    assert str(mask).splitlines() == ["#.", ".#"] and mask.captures["ids"] is ids
    ids[:] = 0
    with pytest.raises(ValueError, match="capture 'ids' differs"):
        mask.check_current()
    before = mask.transposed()
    mask.update()
    mask.check_current()
    assert str(mask).splitlines() == ["##", "##"] and str(before).splitlines() == ["#.", ".#"]
    mask.update(captures={"ids": np.arange(4, dtype=np.int32)})
    assert str(mask).splitlines() == ["+.", ".+"]
    with pytest.raises(ValueError, match="no capture 'id'; it reads ids"):
        mask.update(captures={"id": ids})
    with pytest.raises(ValueError, match="ids"):
        mask.update(captures={"ids": np.zeros(3, np.int32)})
    assert str(mask).splitlines() == ["+.", ".+"]


def inputs(batch=2, heads=4, q_len=17, kv_len=17):
    random = np.random.default_rng(3)
    return [random.standard_normal((batch, heads, n, 8), np.float32) for n in (q_len, kv_len, kv_len)]


@pytest.mark.parametrize("name", ["causal", "window", "documents"])
def test_attention_takes_a_block_mask(name):
    q, k, v = inputs()
    mod = MASKS[name][0]
    params = {"w": 3} if name == "window" else None
    mask = heddle.BlockMask.build(mod, 17, 17, batch=2, heads=4, block=4, params=params)
    want = heddle.attention(q, k, v, mask_mod=mod, params=params, backend="reference")
    np.testing.assert_allclose(heddle.attention(q, k, v, block_mask=mask), want, atol=1e-5)
    np.testing.assert_allclose(heddle.attention(q, k, v, block_mask=mask, mask_mod=mod, params=params), want, atol=1e-5)
    with pytest.raises(ValueError, match="mask"):
        heddle.attention(q, k, v, block_mask=mask, mask_mod="kv_idx == 1")


def test_a_mask_of_one_head_serves_all():
    q, k, v = inputs()
    one = heddle.BlockMask.build("kv_idx <= q_idx", 17, 17, batch=2, block=4)
    want = heddle.attention(q, k, v, mask_mod="kv_idx <= q_idx", backend="reference")
    np.testing.assert_allclose(heddle.attention(q, k, v, block_mask=one), want, atol=1e-5)
    by_head = heddle.BlockMask.build("kv_idx <= q_idx + h", 17, 17, batch=2, block=4)
    with pytest.raises(ValueError, match="block_mask covers 1 head, and its mask reads h; q's 4 are accepted"):
        heddle.attention(q, k, v, block_mask=by_head)


def test_an_array_of_the_same_name_in_the_score():
    q, k, v = inputs()
    mask = heddle.BlockMask.build(MASKS["documents"][0], 17, 17, batch=2, heads=4, block=4)

    def score_of(IDS):  # noqa: N803
        return lambda score, b, h, q_idx, kv_idx: score * IDS[h]

    gates = np.array([1, 2, 0.5, 0], np.float32)
    got = heddle.attention(q, k, v, block_mask=mask, score_mod=score_of(gates))
    np.testing.assert_allclose(
        got, heddle.attention(q, k, v, mask_mod=MASKS["documents"][0], score_mod=score_of(gates)), atol=1e-6)


def test_unlisted_blocks_do_not_attend():
    q, k, v = inputs(batch=1, heads=1, q_len=8, kv_len=8)
    counts, indices = np.array([[[1, 1]]], np.int32), np.array([[[[0], [1]]]], np.int32)
    mask = heddle.BlockMask.from_lists(counts, indices, q_len=8, kv_len=8, block=4)
    want = heddle.attention(q, k, v, mask_mod=lambda b, h, q_idx, kv_idx: q_idx // 4 == kv_idx // 4)
    np.testing.assert_allclose(heddle.attention(q, k, v, block_mask=mask), want, atol=1e-6)


@pytest.mark.parametrize(
    "error, sentence, given",
    [
        (ValueError, "kv_len is not given", {"mask_mod": None, "q_len": 4}),
        (ValueError, "one of cu_seqlens_q and cu_seqlens_kv", {"mask_mod": None, "cu_seqlens_q": IDS}),
        (ValueError, "q_len is given beside cu_seqlens", {"cu_seqlens_q": IDS, "cu_seqlens_kv": IDS, "q_len": 3}),
        (ValueError, "q_start has 3 elements", {"q_len": 4, "kv_len": 4, "q_start": [1, 2, 3]}),
        (ValueError, "q_lengths has 9; 0 to 8", {"q_len": 8, "kv_len": 4, "q_lengths": [9]}),
        (TypeError, "q_lengths is", {"kv_len": 4, "q_lengths": np.array([1.5])}),
        (ValueError, "block has 3 elements", {"q_len": 4, "kv_len": 4, "block": (1, 2, 3)}),
        (TypeError, "block is .3.; .queries, keys., two ints", {"q_len": 4, "kv_len": 4, "block": "3"}),
        (TypeError, "heads is 1.5; an int", {"q_len": 4, "kv_len": 4, "heads": 1.5}),
        (TypeError, "threads is 'x'; an int", {"q_len": 4, "kv_len": 4, "threads": "x"}),
        (TypeError, "q_len is '4'; an int", {"q_len": "4", "kv_len": 4}),
        (TypeError, "cu_seqlens_q is of type list; an array", {"cu_seqlens_q": [0], "cu_seqlens_kv": IDS}),
        (ValueError, "bool", {"mask_mod": "kv_idx + 1", "q_len": 4, "kv_len": 4}),
        (ValueError, "block", {"q_len": 4, "kv_len": 4, "block": 0}),
        (ValueError, "f17", {"q_len": 4, "kv_len": 4, "reals": "f17"}),
        (ValueError, "IDS", {"mask_mod": MASKS["documents"][0], "q_len": 40, "kv_len": 40}),
    ],
)
def test_errors(error, sentence, given):
    with pytest.raises(error, match=sentence):
        heddle.BlockMask.build(given.pop("mask_mod", None), **given)


def test_errors_of_lists_and_of_calls():
    counts, indices = np.array([[[1, 1]]], np.int32), np.array([[[[0], [5]]]], np.int32)
    with pytest.raises(ValueError, match="there are 2 blocks of keys"):
        heddle.BlockMask.from_lists(counts, indices, q_len=8, kv_len=8, block=4)
    with pytest.raises(ValueError, match="kv_indices is i64; i32 is accepted"):
        heddle.BlockMask.from_lists(counts, indices.astype(np.int64), q_len=8, kv_len=8, block=4)
    with pytest.raises(TypeError, match="full_kv_num_blocks is of type list; an array"):
        heddle.BlockMask.from_lists(counts, indices, [1], indices, q_len=8, kv_len=8, block=4)
    with pytest.raises(TypeError, match="BlockMask.build"):
        heddle.BlockMask()
    q, k, v = inputs()
    with pytest.raises(TypeError, match="block_mask is 3; a heddle.BlockMask is accepted"):
        heddle.attention(q, k, v, block_mask=3)
    with pytest.raises(ValueError, match="mask"):
        heddle.attention(q, k, v, block_mask=heddle.BlockMask.build("kv_idx <= q_idx", 8, 8))


@pytest.mark.parametrize("batch", [-1, 2**24 + 1, 2**31, 2**63, 1e3, "2"])
def test_counts_are_checked_before_they_are_used(batch):
    """A list of 2**31 sequences would take all memory of the machine."""
    lists = np.ones((1, 1, 1), np.int32), np.zeros((1, 1, 1, 1), np.int32)
    with pytest.raises((TypeError, ValueError), match="batch is .*(0 to 16777216 are accepted|an int is accepted)"):
        heddle.BlockMask.build("q_idx >= kv_idx", 100, 100, batch=batch)
    with pytest.raises((TypeError, ValueError), match="batch is "):
        heddle.BlockMask.from_lists(*lists, q_len=8, kv_len=8, batch=batch)


def test_arrays_without_strides_are_not_read_before_their_lengths_are_checked():
    many = np.broadcast_to(np.zeros(1, np.int32), (2**40,))
    with pytest.raises(ValueError, match="cu_seqlens_q has 1099511627775 sequences; up to 16777216 are accepted"):
        heddle.BlockMask.build("q_idx >= kv_idx", cu_seqlens_q=many, cu_seqlens_kv=many)
    with pytest.raises(ValueError, match="q_start has 1099511627776 elements; one for each of 1 sequences"):
        heddle.BlockMask.build("q_idx >= kv_idx", 8, 8, q_start=many)
    q = np.ones((1, 1, 4, 8), np.float32)
    with pytest.raises(ValueError, match="q_start has 1099511627775 sequences; up to 16777216 are accepted"):
        heddle.attention(q, q, q, q_start=many)
    with pytest.raises(ValueError, match="up to 16777216 are accepted"):
        heddle.explain(np.broadcast_to(q, (2**30, 1, 4, 8)), q, q)
