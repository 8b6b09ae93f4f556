"""heddle.torch.BlockMask beside torch's own."""

import copy
import pickle

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import heddle.torch
from heddle.torch import BlockMask, and_masks, create_block_mask, create_mask, flex_attention, noop_mask, or_masks

TENSORS = flex.BlockMask._TENSOR_ATTRS
ids = torch.tensor([[0] * 20 + [1] * 30, [0] * 35 + [1] * 15])


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def documents(b, h, q_idx, kv_idx):
    return ids[b, q_idx] == ids[b, kv_idx]


def heads(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx).abs() <= 10 * h


MASKS = [
    causal,
    documents,
    heads,
    and_masks(causal, documents),
    or_masks(causal, heads),
    noop_mask,
    and_masks(),
    or_masks(),
]


def both(mask, *shape, block=16):
    return [create(mask, *shape, "cpu", BLOCK_SIZE=block) for create in (create_block_mask, flex.create_block_mask)]


def assert_same(ours, torchs):
    assert isinstance(ours, BlockMask) and isinstance(ours, flex.BlockMask)
    assert ours.shape == torchs.shape and ours.BLOCK_SIZE == torchs.BLOCK_SIZE
    for name in TENSORS:
        one, other = getattr(ours, name), getattr(torchs, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert one.dtype == torch.int32 and torch.equal(one, other), name


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.__qualname__)
@pytest.mark.parametrize("shape", [(2, 3, 50, 50), (2, 3, 7, 50), (2, 3, 48, 33)])
@pytest.mark.parametrize("block", [16, (8, 32), 128])
def test_lists_equal_torchs(mask, shape, block):
    ours, torchs = both(mask, *shape, block=block)
    assert_same(ours, torchs)
    assert ours.sparsity() == torchs.sparsity() and ours.numel() == torchs.numel()
    assert torch.equal(ours.to_dense(), torchs.to_dense())
    assert str(ours) == str(torchs)
    for one, other in zip(ours.as_tuple(), torchs.as_tuple()):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_sizes_of_none_are_one():
    assert_same(*both(causal, None, None, 40, 40))


def test_indexing():
    ours, torchs = both(
        lambda b, h, q_idx, kv_idx: documents(b, h, q_idx, kv_idx) & heads(b, h, q_idx, kv_idx), 2, 3, 50, 50
    )
    for index in (0, -1, (1, 2), slice(0, 1), (slice(None), 1), (0, slice(1, 3), torch.tensor([2], dtype=torch.int32))):
        assert_same(ours[index], torchs[index])
    q = torch.randn(1, 3, 50, 8)
    with pytest.raises(RuntimeError, match="sliced BlockMask"):
        flex_attention(q, q, q, block_mask=ours[0])


def test_a_sliced_mask_with_its_function_set_anew():
    """How decoding takes a row of a mask."""
    whole = create_block_mask(causal, None, None, 64, 64, "cpu", BLOCK_SIZE=16)
    row = whole[:, :, 2]
    row.mask_mod = lambda b, h, q_idx, kv_idx: causal(b, h, q_idx + 37, kv_idx)
    row.seq_lengths = (1, 64)
    q, k = torch.randn(1, 2, 64, 8), torch.randn(1, 2, 64, 8)
    got = flex_attention(q[:, :, 37:38], k, k, block_mask=row)
    torch.testing.assert_close(got, flex_attention(q, k, k, block_mask=whole)[:, :, 37:38])


@pytest.mark.parametrize("lengths", [(50, 50), (32, 48), (33, 20), (1, 50), (50, 1)])
def test_adjust_crops(lengths):
    ours = create_block_mask(documents, 2, None, 50, 50, "cpu", BLOCK_SIZE=16)
    want = flex.create_block_mask(documents, 2, None, *lengths, "cpu", BLOCK_SIZE=16)
    assert_same(ours._adjust(*lengths), want)
    of_lists = BlockMask.from_kv_blocks(
        *(getattr(ours, name) for name in TENSORS[:4]), BLOCK_SIZE=16, mask_mod=documents, seq_lengths=(50, 50)
    )
    cropped = of_lists._adjust(*lengths)
    assert cropped.shape == want.shape and bool((cropped.to_dense() >= want.to_dense()).all())
    q, k = torch.randn(2, 1, lengths[0], 8), torch.randn(2, 1, lengths[1], 8)
    torch.testing.assert_close(flex_attention(q, k, k, block_mask=cropped), flex_attention(q, k, k, block_mask=want))


def test_from_lists():
    ours, torchs = both(documents, 2, None, 50, 50)
    lists = [getattr(torchs, name) for name in TENSORS[:4]]
    for compute in (True, False):
        made = [
            of.from_kv_blocks(*lists, BLOCK_SIZE=16, mask_mod=documents, seq_lengths=(50, 50), compute_q_blocks=compute)
            for of in (BlockMask, flex.BlockMask)
        ]
        assert_same(*made)
    assert BlockMask.from_kv_blocks(*lists[:2], BLOCK_SIZE=16).mask_mod is noop_mask
    assert BlockMask.from_kv_blocks(*lists[:2], BLOCK_SIZE=16).shape == (2, 1, 64, 64)
    with pytest.raises(RuntimeError, match="2 dimensions"):
        BlockMask.from_kv_blocks(lists[0], lists[1][0, 0, 0])
    with pytest.raises(AssertionError, match="both provided"):
        BlockMask.from_kv_blocks(*lists[:3])


def test_lists_are_taken_at_their_word():
    """Blocks that are not listed do not attend, full ones attend whole, whatever the function says."""
    counts, columns = torch.tensor([[[1, 1]]], dtype=torch.int32), torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    q = torch.randn(1, 2, 8, 4)
    i = torch.arange(8)
    same_block = i[:, None] // 4 == i // 4
    for full, want in (
        (None, same_block & (i[:, None] >= i)),
        ((counts * 0 + 1, 1 - columns), ((i[:, None] >= i) & same_block) | ~same_block),
    ):
        mask = BlockMask.from_kv_blocks(counts, columns, *(full or (None, None)), BLOCK_SIZE=4, mask_mod=causal)
        got = flex_attention(q, q, q, block_mask=mask)
        torch.testing.assert_close(got, torch.nn.functional.scaled_dot_product_attention(q, q, q, want))


def test_torchs_own_objects_are_taken():
    q = torch.randn(2, 3, 50, 8)
    for mask in (causal, documents, heads):
        ours, torchs = both(mask, 2, 3, 50, 50)
        torch.testing.assert_close(flex_attention(q, q, q, block_mask=ours), flex_attention(q, q, q, block_mask=torchs))
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    torch.testing.assert_close(flex.flex_attention(q, q, q, block_mask=ours), flex_attention(q, q, q, block_mask=ours))


def test_other_lengths_are_refused():
    mask = create_block_mask(causal, None, None, 50, 50, "cpu")
    for length in (49, 51):
        q = torch.randn(1, 2, length, 8)
        with pytest.raises((ValueError, RuntimeError), match="block_mask was created for") as refused:
            flex_attention(q, q, q, block_mask=mask)
        with pytest.raises(refused.type):  # torch's own: another one since 2.12
            flex.flex_attention(q, q, q, block_mask=flex.create_block_mask(causal, None, None, 50, 50, "cpu"))
    q = torch.randn(3, 2, 50, 8)
    with pytest.raises(ValueError, match="batch size 2"):
        flex_attention(q, q, q, block_mask=create_block_mask(documents, 2, None, 50, 50, "cpu"))


def test_a_list_changed_by_hand():
    mask = create_block_mask(causal, None, None, 32, 32, "cpu", BLOCK_SIZE=16)
    mask.full_kv_num_blocks = torch.zeros_like(mask.full_kv_num_blocks)
    q = torch.randn(1, 1, 32, 8)
    i = torch.arange(32)
    want = (i[:, None] >= i) & (i[:, None] // 16 == i // 16)
    torch.testing.assert_close(
        flex_attention(q, q, q, block_mask=mask), torch.nn.functional.scaled_dot_product_attention(q, q, q, want)
    )


def test_to_and_pytree():
    mask = create_block_mask(documents, 2, None, 50, 50, "cpu", BLOCK_SIZE=16)
    assert mask.to("cpu") is mask
    moved = mask.to("meta")
    assert moved.kv_indices.device.type == "meta" and isinstance(moved, BlockMask)
    tensors, context = mask._flatten()
    assert_same(BlockMask._unflatten(tensors, context), mask)


def test_create_mask():
    for mask in MASKS:
        assert torch.equal(create_mask(mask, 2, 3, 20, 30, "cpu"), flex.create_mask(mask, 2, 3, 20, 30, "cpu"))
    got = create_mask(
        lambda score, b, h, q_idx, kv_idx: torch.where(q_idx > kv_idx, score, -torch.inf), 1, 1, 4, 4, "cpu"
    )
    assert torch.equal(got[0, 0], torch.ones(4, 4).tril(-1).bool())


def test_joined_full_blocks():
    mask = create_block_mask(causal, None, None, 64, 64, "cpu", BLOCK_SIZE=16, separate_full_blocks=False)
    assert mask.full_kv_indices is None and mask.kv_num_blocks.tolist() == [[[1, 2, 3, 4]]]


def test_arguments():
    with pytest.warns(DeprecationWarning):
        create_block_mask(causal, None, None, 8, 8, "cpu", _compile=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'block'"):
        create_block_mask(causal, None, None, 8, 8, "cpu", block=3)
    with pytest.raises(RuntimeError, match="callable"):
        and_masks(causal, 3)


def test_no_dense_mask():
    """A mask of 2^40 elements takes what its lists take."""
    mask = create_block_mask(causal, None, None, 1 << 20, 1 << 20, "cpu", BLOCK_SIZE=1 << 13)
    assert mask.kv_num_blocks.shape == (1, 1, 128) and int(mask.full_kv_num_blocks.sum()) == 128 * 127 // 2


def test_pictures():
    mask = create_block_mask(causal, None, None, 64, 64, "cpu", BLOCK_SIZE=16)
    assert mask._repr_svg_().startswith("<svg")
    assert "sparsity" in repr(mask) and "causal" in repr(mask)


@pytest.mark.parametrize("create", [create_block_mask, flex.create_block_mask])
def test_a_mask_mod_that_is_changed(create):
    """Decoding loops put another mask_mod into a block mask."""
    q = torch.randn(1, 1, 32, 8)
    mask = create(causal, None, None, 32, 32, "cpu")  # one block, partial
    flex_attention(q, q, q, block_mask=mask)
    mask.mask_mod = lambda b, h, q_idx, kv_idx: kv_idx < 3
    torch.testing.assert_close(flex_attention(q, q, q, block_mask=mask), flex.flex_attention(q, q, q, block_mask=mask))


def attends_nothing(mask):
    q = torch.randn(1, 2, 50, 8)
    return not flex_attention(q, q, q, block_mask=mask).any()


NO_BLOCKS = torch.zeros(1, 1, 4, dtype=torch.int32)


@pytest.mark.parametrize("is_read", [False, True])
def test_an_assigned_list_counts(is_read):
    mask, _ = both(causal, 1, 1, 50, 50)
    if is_read:
        mask.to_dense()
    mask.kv_num_blocks = mask.full_kv_num_blocks = NO_BLOCKS
    assert attends_nothing(mask)
    assert mask.shape == (1, 1, 50, 50) and mask.sparsity() == 100.0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_list_changed_in_place_counts(mode):
    with mode():
        made = both(causal, 1, 1, 50, 50)[0]
        ordinary, torchs = both(causal, 1, 1, 50, 50)
        listed = BlockMask.from_kv_blocks(
            ordinary.kv_num_blocks.clone(), ordinary.kv_indices, BLOCK_SIZE=16, mask_mod=causal, seq_lengths=(50, 50)
        )
        for mask in (made, listed, torchs):
            assert not attends_nothing(mask)
            mask.kv_num_blocks.zero_()
            if mask.full_kv_num_blocks is not None:
                mask.full_kv_num_blocks.zero_()
            assert attends_nothing(mask)


def test_reading_lists_changes_nothing():
    mask, _ = both(causal, 1, 1, 50, 50)
    mask.to_dense()
    assert mask._lazy is not None


def test_numbers_of_a_mask_mod_are_read_at_each_use():
    window = 60

    def near(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < window)

    q = torch.randn(1, 2, 50, 8)
    masks = [flex.create_block_mask(near, None, None, 50, 50, "cpu"), create_block_mask(near, 1, 1, 50, 50, "cpu")]
    masks[1].kv_num_blocks = masks[1].kv_num_blocks.clone()
    for window in (60, 5, 60):
        want = flex_attention(q, q, q, block_mask=create_block_mask(near, None, None, 50, 50, "cpu"))
        for mask in masks:
            assert torch.equal(flex_attention(q, q, q, block_mask=mask), want)


@pytest.mark.parametrize("create", [create_block_mask, flex.create_block_mask])
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("mask_mod", [causal, documents])
def test_copies(create, copied, mask_mod):
    q = torch.randn(2, 2, 50, 8)
    mask = create(mask_mod, 2, None, 50, 50, "cpu", BLOCK_SIZE=16)
    want = flex_attention(q, q, q, block_mask=mask)
    unread = copied(mask)
    mask.to_dense()
    for made in (unread, copied(mask)):
        assert type(made) is type(mask) and made.shape == mask.shape and made.mask_mod is mask_mod
        assert torch.equal(flex_attention(q, q, q, block_mask=made), want)
        assert torch.equal(made.to_dense(), mask.to_dense())
    mask.kv_num_blocks.zero_()
    edited = copied(mask)
    assert torch.equal(edited.kv_num_blocks, mask.kv_num_blocks)
    assert torch.equal(flex_attention(q, q, q, block_mask=edited), flex_attention(q, q, q, block_mask=mask))


with_write_order = pytest.mark.skipif(
    "dq_write_order" not in TENSORS, reason=f"torch {torch.__version__} has no dq_write_order"
)


@with_write_order
@pytest.mark.parametrize("mask_mod", [causal, documents])
@pytest.mark.parametrize("descending", [False, True])
def test_the_write_order_of_dq(mask_mod, descending):
    """No kernel of heddle reads it; it is what torch computes, and follows the mask's lists."""
    options = {"BLOCK_SIZE": 16, "compute_dq_write_order": True, "dq_kv_order": descending}
    ours, torchs = (
        create(mask_mod, 2, None, 50, 50, "cpu", **options) for create in (create_block_mask, flex.create_block_mask)
    )
    changed = [
        lambda mask: mask,
        lambda mask: mask[:1],
        lambda mask: mask._adjust(32, 48),
        lambda mask: mask.to("cpu"),
        copy.deepcopy,
        lambda mask: type(mask)._unflatten(*mask._flatten()),
    ]
    for change in changed:
        one, other = change(ours), change(torchs)
        assert_same(one, other)
        assert one.dq_write_order is not None and one.dq_kv_order_spt == other.dq_kv_order_spt == descending
    q = torch.randn(2, 2, 50, 8)
    plain = create_block_mask(mask_mod, 2, None, 50, 50, "cpu")
    assert torch.equal(flex_attention(q, q, q, block_mask=ours), flex_attention(q, q, q, block_mask=plain))


@with_write_order
def test_a_write_order_that_is_given():
    counts, indices = torch.tensor([[[1, 2]]]), torch.tensor([[[[0, 1], [0, 1]]]])
    order, ranks = torch.zeros_like(indices), torch.tensor([[[1, 0]]])
    for given in ({"dq_write_order": order, "dq_kv_order": True}, {"dq_write_order": order, "dq_kv_order": ranks}):
        ours, torchs = (
            kind.from_kv_blocks(counts, indices, BLOCK_SIZE=16, **given) for kind in (BlockMask, flex.BlockMask)
        )
        for name in ("dq_write_order", "dq_write_order_full", "dq_kv_order", "dq_kv_order_spt"):
            assert getattr(ours, name) is getattr(torchs, name)
    with pytest.raises(NotImplementedError, match="dq_kv_order"):
        ours._adjust(16, 16)
    with pytest.raises(ValueError, match="dq_kv_order is 3"):
        BlockMask.from_kv_blocks(counts, indices, dq_kv_order=3)


def test_names_that_this_torch_lacks():
    counts, indices = torch.tensor([[[1, 2]]]), torch.tensor([[[[0, 1], [0, 1]]]])
    for unknown in ["dq_colour"] + ([] if "dq_write_order" in TENSORS else ["dq_write_order"]):
        with pytest.raises(TypeError, match=unknown):
            BlockMask.from_kv_blocks(counts, indices, **{unknown: None})
    if "dq_write_order" not in TENSORS:
        with pytest.raises(NotImplementedError, match="torch 2.12"):
            create_block_mask(causal, None, None, 50, 50, "cpu", compute_dq_write_order=True)
    with pytest.raises(ValueError, match="must be a bool"):
        create_block_mask(causal, None, None, 50, 50, "cpu", dq_kv_order=counts)


def test_without_the_accelerator_that_torch_was_built_for(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 8, 8)
    assert mask.device == torch.device("cpu") and mask.kv_num_blocks.device == torch.device("cpu")
