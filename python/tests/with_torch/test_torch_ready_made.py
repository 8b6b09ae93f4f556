"""heddle.mods in heddle.torch: the same expressions, on torch's tensors, with their gradients."""

import numpy as np
import pytest
import torch

import heddle
from heddle import mods
from heddle.torch import create_block_mask, create_mask, flex_attention

torch.manual_seed(0)
Q, K, V = torch.randn(3, 1, 2, 32, 8).unbind()
IDS = torch.arange(32) // 7
BEFORE = torch.tensor([3, 9])

MASKS = {
    "natten": (mods.natten_2d(4, 8, 3, 5), None),
    "documents": (mods.causal() & mods.documents(IDS), lambda b, h, i, j: (i >= j) & (IDS[i] == IDS[j])),
    "heads": (mods.windows_by_head(BEFORE), lambda b, h, i, j: (i >= j) & (i - j <= BEFORE[h])),
    "a function": (~mods.causal() | (lambda b, h, i, j: IDS[j] > 2), lambda b, h, i, j: (i < j) | (IDS[j] > 2)),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    mod, same = MASKS[name]
    if same is None:
        dense = torch.from_numpy(np.array([list(line) for line in heddle.BlockMask.build(
            mod, 32, 32, block=1).text().splitlines()]) == "#")
        same = lambda b, h, i, j: dense[i, j]  # noqa: E731
    heads = 2 if name == "heads" else None
    mask, want = (create_block_mask(one, None, heads, 32, 32, "cpu", BLOCK_SIZE=8) for one in (mod, same))
    assert torch.equal(mask.to_dense(), want.to_dense())
    for _ in range(2):
        torch.testing.assert_close(flex_attention(Q, K, V, block_mask=mask), flex_attention(Q, K, V, block_mask=want))


def test_a_mask_and_a_score_that_name_alike():
    """Both read what their makers call `table`."""
    table = torch.rand(2, 13)
    near, far = torch.zeros(32, dtype=torch.int64), torch.ones(32, dtype=torch.int64)
    of_mask = mods.causal() & (lambda b, h, q_idx, kv_idx: (lambda table: table[kv_idx] == 0)(near))
    mask = create_block_mask(of_mask, None, None, 32, 32, "cpu")
    got = flex_attention(Q, K, V, mods.relative_bias(table, 6), mask)
    want = flex_attention(Q, K, V, lambda s, b, h, i, j: s + table[h, (j - i).clamp(-6, 6) + 6],
                          create_block_mask(lambda b, h, i, j: i >= j, None, None, 32, 32, "cpu"))
    torch.testing.assert_close(got, want)
    assert not torch.equal(near, far)


def test_scores_and_their_gradients():
    slopes, twin = (torch.tensor([0.5, 0.25], requires_grad=True) for _ in range(2))
    for score, factors in ((mods.alibi(slopes), slopes), (lambda s, b, h, i, j: s + twin[h] * (j - i), twin)):
        flex_attention(Q, K, V, score).square().sum().backward()
    torch.testing.assert_close(slopes.grad, twin.grad)
    capped = flex_attention(Q, K, V, mods.softcap(0.5))
    torch.testing.assert_close(capped, flex_attention(Q, K, V, lambda s, b, h, i, j: 0.5 * torch.tanh(s / 0.5)))
    numpys = flex_attention(Q, K, V, mods.alibi(mods.alibi_slopes(2)))
    torch.testing.assert_close(numpys, flex_attention(Q, K, V, lambda s, b, h, i, j: s + 2.0 ** (-4 * (h + 1)) * (j - i)))


def test_each_call_reads_the_present_content():
    ids = IDS.clone()
    score = mods.alibi(torch.zeros(2))
    mask = create_block_mask(mods.documents(ids), None, None, 32, 32, "cpu")
    before = flex_attention(Q, K, V, score, mask)
    ids.zero_()
    after = create_block_mask(mods.documents(ids), None, None, 32, 32, "cpu")
    torch.testing.assert_close(flex_attention(Q, K, V, score, after), flex_attention(Q, K, V))
    assert not torch.allclose(before, flex_attention(Q, K, V))


def test_refusals():
    with pytest.raises(AssertionError, match="mask_mod"):
        create_block_mask(mods.softcap(3.0), None, None, 32, 32, "cpu")
    with pytest.raises(ValueError, match="not Traced.*alone or combined by &"):
        flex_attention(Q, K, V, lambda s, b, h, i, j: mods.softcap(3.0)(s, b, h, i, j))
    compiled = torch.compile(flex_attention, fullgraph=True)
    with pytest.raises(Exception, match="score_mod is a ready-made mod of heddle.mods"):
        compiled(Q, K, V, mods.softcap(3.0))
    torch.compiler.reset()
    mask = create_block_mask(mods.causal(), None, None, 32, 32, "cpu")
    with pytest.raises(Exception, match="block_mask is a ready-made mod of heddle.mods"):
        compiled(Q, K, V, block_mask=mask)


def test_dense_masks():
    want = create_mask(lambda b, h, i, j: i >= j, None, None, 5, 7, "cpu")
    assert torch.equal(create_mask(mods.causal(), None, None, 5, 7, "cpu"), want)
