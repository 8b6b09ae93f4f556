"""Tensors of the caller's that calls write: autograd notices each write, and is not misled by one that it cannot record."""

import pytest
import torch

from heddle.torch import flashinfer, serving, varlen_attn_out

Q = torch.randn(7, 2, 8, generator=torch.Generator().manual_seed(4))
ROW, STARTS = Q[:2].unsqueeze(1), torch.tensor([0, 3, 7], dtype=torch.int32)
LENGTHS = torch.tensor([3, 4], dtype=torch.int32)


def caches():
    return [torch.zeros(2, 9, 2, 8) for _ in range(2)]


def paged(out):
    """Python's way: C++ takes no sinks."""
    serving.varlen_func(Q, Q, Q, STARTS, STARTS, 4, 4, sinks=torch.zeros(2), out=out)


def ragged():
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(None, "NHD")
    wrapper.plan(STARTS, STARTS, 2, 2, 8, 8)
    return wrapper


WRITES = {
    "varlen_attn_out": lambda out: varlen_attn_out(out, Q, Q, Q, STARTS, STARTS, 4, 4),
    "varlen_func": lambda out: serving.varlen_func(Q, Q, Q, STARTS, STARTS, 4, 4, out=out),
    "varlen_func, sinks": paged,
    "flashinfer": lambda out: ragged().run(Q, Q, Q, out=out),
    "with_kvcache": lambda out: serving.with_kvcache(
        ROW, *[ROW.repeat(1, 9, 1, 1)] * 2, cache_seqlens=LENGTHS, out=out[:2].unsqueeze(1)),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_noticed(name):
    out, leaf = torch.zeros(7, 2, 8), torch.ones(1, requires_grad=True)
    before = (out * leaf).sum()
    WRITES[name](out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        before.backward()


def test_rows_that_are_appended_are_noticed():
    for at, write in enumerate((
        lambda keys, values: serving.append(keys, values, ROW, ROW, LENGTHS),
        lambda keys, values: serving.with_kvcache(ROW, keys, values, ROW, ROW, cache_seqlens=LENGTHS),
    )):
        for i in range(2):
            leaf, both = torch.ones(1, requires_grad=True), caches()
            before = (both[i] * leaf).sum()
            write(*both)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                before.backward()
            assert both[i].any(), at


@pytest.mark.parametrize("name", WRITES)
def test_what_requires_a_gradient_is_not_written(name):
    leaf = torch.zeros(7, 2, 8, requires_grad=True)
    for out in (leaf, leaf * 1.0):
        with pytest.raises(RuntimeError, match="out requires a gradient"):
            WRITES[name](out)
        assert not out.detach().any()
    with torch.no_grad():
        WRITES[name](leaf)
    assert leaf.any()


def test_rows_appended_to_a_cache_that_has_a_gradient():
    """The rows that new ones replace have none any more, whether or not the new ones require one."""
    leaf = torch.ones(2, 9, 2, 8, requires_grad=True)
    keys, values = leaf * 2.0, leaf * 3.0
    serving.append(keys, values, ROW, ROW, LENGTHS)
    assert torch.equal(keys[0, 3], ROW[0, 0])
    (keys.sum() + values.sum()).backward()
    want = torch.full((2, 9, 2, 8), 5.0)
    want[0, 3] = want[1, 4] = 0.0
    assert torch.equal(leaf.grad, want)


@pytest.mark.parametrize("learned", [False, True])
def test_rows_past_the_end(learned):
    rows = ROW.clone().requires_grad_(learned)
    for lengths in (LENGTHS + 6, LENGTHS - 5):
        with pytest.raises(ValueError, match=r"lengths\[[01]\] is (9|10|-1|-2)"):
            serving.append(*caches(), rows, ROW, lengths)
    table = torch.tensor([[0, -1], [1, -1]], dtype=torch.int32)
    with pytest.raises(ValueError, match="page_table"):
        serving.append(*(x[:, :4] for x in caches()), rows, ROW, LENGTHS, table)
    for number in (-1, 2):
        with pytest.raises(ValueError, match="page_table"):
            serving.append(*caches(), rows, ROW, LENGTHS, torch.tensor([[0], [number]], dtype=torch.int32))
