"""heddle.mods in heddle.torch: the same expressions, on torch's tensors, with their gradients."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

import heddle
from heddle import mods
from heddle.torch import create_block_mask, create_mask, flex_attention, scaled_dot_product_attention

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


SLOPES = torch.tensor([0.5, 0.25], requires_grad=True)
SCORES = {
    "alibi": mods.alibi(SLOPES),
    "numpy": mods.alibi(mods.alibi_slopes(2)),
    "relative": mods.relative_bias(torch.rand(2, 13), 6),
    "t5": mods.t5_bias(torch.rand(32, 2), 32, 128, True),
    "swin": mods.swin_bias(torch.rand(9, 2), 8, 2),
    "graph": mods.graph_bias(torch.randint(0, 9, (32, 32)), torch.rand(4, 2), 3),
    "softcap": mods.softcap(0.5),
}
MORE_MASKS = {
    "windows": mods.sliding_window(5, 2) & ~mods.dilated_window(9, 3) | mods.prefix_lm(torch.tensor([3])),
    "chunks": mods.causal_chunks(5) | mods.block_diffusion_training(16, 4),
    "tree": mods.tree(torch.tensor([0, 1, 2, 3], dtype=torch.int32), torch.tensor([3, 2, 2, 3], dtype=torch.int32), 28),
    "torch's functions": mods.causal() & (lambda b, h, i, j: torch.where(j > 3, i >= 0, IDS[j] == 0)),
    **{name: mod for name, (mod, _) in MASKS.items()},
}


def compiled(*arguments):
    torch.compiler.reset()
    return torch.compile(flex_attention, fullgraph=True, backend="aot_eager")(*arguments)


@pytest.mark.parametrize("name", SCORES)
def test_scores_as_torchs_functions(name):
    """Called with tensors: by a user's function, by torch, by Dynamo."""
    want = flex_attention(Q, K, V, SCORES[name])
    torch.testing.assert_close(flex_attention(Q, K, V, lambda s, b, h, i, j: SCORES[name](s, b, h, i, j)), want)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, which would rather be compiled
        torch.testing.assert_close(torch_flex.flex_attention(Q, K, V, SCORES[name]), want)
    torch.testing.assert_close(compiled(Q, K, V, SCORES[name]), want)


@pytest.mark.parametrize("name", MORE_MASKS)
def test_masks_as_torchs_functions(name):
    mod = MORE_MASKS[name]
    mask = create_block_mask(mod, None, 2, 32, 32, "cpu", BLOCK_SIZE=8)
    dense = torch_flex.create_mask(lambda b, h, i, j: mod(b, h, i, j), 1, 2, 32, 32, "cpu")
    assert torch.equal(create_mask(mod, 1, 2, 32, 32, "cpu"), dense)
    want = flex_attention(Q, K, V, block_mask=mask)
    torch.testing.assert_close(scaled_dot_product_attention(Q, K, V, dense), want)
    torch.testing.assert_close(compiled(Q, K, V, None, mask), want)


def test_one_of_another():
    capped = lambda s, b, h, i, j: SCORES["softcap"](SCORES["alibi"](s, b, h, i, j), b, h, i, j)  # noqa: E731
    same = lambda s, b, h, i, j: 0.5 * torch.tanh((s + SLOPES[h] * (j - i)) / 0.5)  # noqa: E731
    want = torch.autograd.grad(flex_attention(Q, K, V, same).square().sum(), SLOPES)
    for call in (flex_attention, compiled):
        torch.testing.assert_close(torch.autograd.grad(call(Q, K, V, capped).square().sum(), SLOPES), want)
    shifted = lambda b, h, i, j: mods.causal()(b, h, i, j + 3)  # noqa: E731
    want = create_mask(lambda b, h, i, j: i >= j + 3, None, None, 5, 7, "cpu")
    assert torch.equal(create_mask(shifted, None, None, 5, 7, "cpu"), want)


def test_made_inside_a_compiled_function():
    def packed(q, ids, window):
        mask = create_block_mask(mods.documents(ids) & mods.sliding_window(window), None, None, 32, 32, "cpu")
        return flex_attention(q, K, V, mods.softcap(2.0), mask)

    made = torch.compile(packed, fullgraph=True, backend="aot_eager")
    for ids, window in ((IDS, 5), (IDS.flip(0), 5), (IDS, 9), (IDS // 2, 3)):
        torch.testing.assert_close(made(Q, ids, window), packed(Q, ids, window))


def test_made_while_a_graph_is_compiled(monkeypatch):
    """torch 2.15 says that it compiles wherever Python's code runs in the meantime, and torch.export if it is not strict."""
    def packed(q):
        mask = create_block_mask(mods.documents(IDS) & mods.sliding_window(5), None, None, 32, 32, "cpu")
        return flex_attention(q, K, V, lambda *at: mods.softcap(3.0625)(mods.alibi(SLOPES)(*at), *at[1:]), mask)

    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    got = packed(Q)
    monkeypatch.undo()
    torch.testing.assert_close(got, packed(Q), atol=0, rtol=0)
    module = torch.nn.Module()
    module.forward = packed
    for strict in (False, True):
        torch.testing.assert_close(torch.export.export(module, (Q,), strict=strict).module()(Q), got)


def test_refusals():
    with pytest.raises(AssertionError, match="mask_mod"):
        create_block_mask(mods.softcap(3.0), None, None, 32, 32, "cpu")
    lower = mods.causal_lower_right()
    create_block_mask(lower & mods.documents(IDS), None, None, 32, 32, "cpu")
    with pytest.raises(NotImplementedError, match="a mod reads (q|kv)_(len|start), which has a value inside of"):
        create_mask(lambda b, h, i, j: lower(b, h, i, j), None, None, 32, 32, "cpu")
    with pytest.raises(NotImplementedError, match="heddle.mods.dropout has an expression for an argument"):
        create_mask(lambda b, h, i, j: mods.dropout(0.5, heddle.param("seed", "i32"))(b, h, i, j) > 0, 1, 1, 4, 4, "cpu")
    with pytest.raises(NotImplementedError, match="a mod reads random_uniform, which has a value"):
        create_mask(lambda b, h, i, j: mods.dropout(0.5, 3)(b, h, i, j) > 0, 1, 1, 4, 4, "cpu")


def test_dense_masks():
    want = create_mask(lambda b, h, i, j: i >= j, None, None, 5, 7, "cpu")
    assert torch.equal(create_mask(mods.causal(), None, None, 5, 7, "cpu"), want)


class Biased(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25]))
        self.score = mods.alibi(self.slopes)

    def forward(self, q):
        return flex_attention(q, K, V, self.score)


def test_a_copied_module_learns_its_own_slopes():
    module = Biased()
    again = copy.deepcopy(module)
    again(Q).square().sum().backward()
    assert module.slopes.grad is None and again.slopes.grad.abs().sum() > 0
    with torch.no_grad():
        again.slopes.zero_()
    torch.testing.assert_close(again(Q), flex_attention(Q, K, V))
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(Q), module(Q))


def test_arrays_of_numpy_that_no_tensor_shares():
    """Beside heddle.torch, too, heddle's own calls take them, and nothing warns."""
    slopes, ids = np.array([0.25, 0.5], np.float32)[::-1], np.broadcast_to(np.int64(3), 32)
    x = Q.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mod in (mods.alibi(slopes), mods.alibi(slopes.astype(">f4"))):
            want = heddle.attention(x, x, x, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i))
            np.testing.assert_array_equal(heddle.attention(x, x, x, score_mod=mod), want)
            torch.testing.assert_close(flex_attention(Q, Q, Q, mod), torch.from_numpy(want))
            torch.testing.assert_close(flex_attention(Q, Q, Q, lambda s, b, h, i, j: mod(s, b, h, i, j)), torch.from_numpy(want))
        mask = create_block_mask(mods.documents(ids), None, None, 32, 32, "cpu")
        torch.testing.assert_close(flex_attention(Q, K, V, block_mask=mask), flex_attention(Q, K, V))


def test_a_mod_that_was_made_before_torch_came(monkeypatch):
    """It has NumPy's arrays, which Dynamo makes tensors of."""
    monkeypatch.setattr(heddle._mod, "as_tensor", None)
    score, mask = mods.alibi(mods.alibi_slopes(2)), ~mods.documents(np.arange(32) // 7) | mods.causal()
    assert isinstance(score.recipe[2][0], np.ndarray)
    block_mask = create_block_mask(mask, None, None, 32, 32, "cpu")
    torch.testing.assert_close(compiled(Q, K, V, score, block_mask), flex_attention(Q, K, V, score, block_mask))
