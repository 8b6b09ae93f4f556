"""Block masks whose mask_mod belongs to an object; masks without scores; sizes of NumPy's and torch's."""

import copy
import functools

import numpy as np
import pytest
import torch

from gradient_reference import causal
from heddle.torch import create_block_mask, create_mask, flex_attention


class Documents(torch.nn.Module):
    """Its mask is a bound method, or of the kind that is asked for."""

    def __init__(self, kind=""):
        super().__init__()
        self.register_buffer("ids", torch.arange(50) // 9)
        self.mask = create_block_mask(
            functools.partial(by_ids, ids=self.ids) if kind == "partial" else self.mask_mod, None, None, 50, 50, "cpu")

    def mask_mod(self, b, h, q_idx, kv_idx):
        return self.ids[q_idx] == self.ids[kv_idx]

    def forward(self, q):
        return flex_attention(q, q, q, block_mask=self.mask)


def by_ids(b, h, q_idx, kv_idx, ids):
    return ids[q_idx] == ids[kv_idx]


@pytest.mark.parametrize("kind", ["method", "partial"])
def test_a_copied_module_reads_its_own_ids(kind):
    """As a copied mask_mod of torch's mask does: what a method or a partial reaches is copied with it."""
    q, module = torch.randn(1, 2, 50, 8), Documents(kind)
    want = module(q)
    other = copy.deepcopy(module)
    assert torch.equal(other(q), want)
    other.ids.zero_()
    assert torch.equal(other(q), flex_attention(q, q, q)) and torch.equal(module(q), want)


def test_a_bound_method():
    """torch counts its object as an argument, and refuses it."""
    module, dense_of = Documents(), torch.arange(50) // 9
    assert torch.equal(create_mask(module.mask_mod, 1, 1, 50, 50, "cpu")[0, 0], dense_of[:, None] == dense_of)
    with pytest.raises(AssertionError, match="5 positional args|mask_mod"):
        create_block_mask(module.register_buffer, None, None, 5, 5, "cpu")
    torch._dynamo.reset()
    q = torch.randn(1, 2, 50, 8)

    def made_inside(q):
        return flex_attention(q, q, q, block_mask=create_block_mask(module.mask_mod, None, None, 50, 50, "cpu"))

    torch.testing.assert_close(torch.compile(made_inside, fullgraph=True, backend="eager")(q), module(q))


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
def test_a_mask_without_scores_is_printed(lengths):
    mask = create_block_mask(causal, None, None, *lengths, "cpu")
    assert mask.sparsity() == 0.0
    assert str(lengths[0]) in str(mask) and "BlockMask" in repr(mask)


@pytest.mark.parametrize("size", [np.int64(16), torch.tensor(16), (np.int32(16), 16), (torch.tensor(16), torch.tensor(16))])
def test_block_sizes_that_count_as_ints(size):
    mask = create_block_mask(causal, None, None, 50, 50, "cpu", BLOCK_SIZE=size)
    assert mask.BLOCK_SIZE == (16, 16) and [type(one) for one in mask.BLOCK_SIZE] == [int, int]


@pytest.mark.parametrize("size", [16, (16, 32)])
def test_block_sizes_in_a_compiled_function(size):
    torch._dynamo.reset()
    q = torch.randn(1, 2, 50, 8)

    def attend(q):
        return flex_attention(q, q, q, block_mask=create_block_mask(causal, None, None, 50, 50, "cpu", BLOCK_SIZE=size))

    torch.testing.assert_close(torch.compile(attend, fullgraph=True, backend="eager")(q), attend(q))
