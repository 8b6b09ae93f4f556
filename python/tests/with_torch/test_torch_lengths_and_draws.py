"""Ready-made mods that read lengths or draw numbers, where torch traces or calls them: compiled, inside of users' functions,
and handed to torch's own functions, which have neither."""

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from heddle import mods
from heddle.torch import create_block_mask, flex_attention

torch.manual_seed(3)
Q = torch.randn(2, 2, 5, 8)
K, V = torch.randn(2, 2, 2, 9, 8).unbind()
LOWER_RIGHT = mods.causal_lower_right()
DROPOUTS = {"a number": mods.dropout(0.5, 11), "below 0": mods.dropout(0.25, -7)}
REFERENCE = lambda b, h, q_idx, kv_idx: kv_idx - q_idx <= 4  # noqa: E731  9 keys, 5 queries


def compiled(function, *arguments, dynamic=None):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)(*arguments)


def masked(mask):
    return lambda q, k, v: flex_attention(q, k, v, block_mask=create_block_mask(mask, None, None, q.shape[2], k.shape[2], "cpu"))


MASKS = {
    "alone": (LOWER_RIGHT, REFERENCE),
    "combined": (LOWER_RIGHT | mods.sliding_window(3), lambda b, h, i, j: (j - i <= 4) | (i >= j) & (i - j <= 3)),
    "in a function": (lambda b, h, i, j: LOWER_RIGHT(b, h, i, j) & (j > 0), lambda b, h, i, j: (j - i <= 4) & (j > 0)),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_last_query_sees_the_last_key(name):
    mask, plain = MASKS[name]
    want = masked(plain)(Q, K, V)
    torch.testing.assert_close(masked(mask)(Q, K, V), want)
    for dynamic in (None, True):
        torch.testing.assert_close(compiled(masked(mask), Q, K, V, dynamic=dynamic), want)


def test_other_lengths_read_their_own():
    attend = torch.compile(masked(LOWER_RIGHT), fullgraph=True, backend="aot_eager", dynamic=True)
    for q_len, kv_len in ((5, 9), (4, 7), (6, 6)):
        q, k, v = Q.new_ones(1, 2, q_len, 8), *torch.randn(2, 1, 2, kv_len, 8).unbind()
        want = masked(lambda b, h, i, j, wide=kv_len - q_len: j - i <= wide)(q, k, v)
        torch.testing.assert_close(attend(q, k, v), want)


@pytest.mark.parametrize("name", DROPOUTS)
def test_the_same_weights_are_dropped(name):
    drop = DROPOUTS[name]

    def attend(q):
        return flex_attention(q, K, V, lambda score, *at: torch.where(drop(*at) == 0, -float("inf"), score))

    torch.testing.assert_close(flex_attention(Q, K, V, drop), compiled(lambda q: flex_attention(q, K, V, drop), Q))
    gradients = []
    for function in (attend, lambda q: compiled(attend, q)):
        q = Q.clone().requires_grad_()
        out = function(q)
        out.square().sum().backward()
        gradients.append((out.detach(), q.grad))
    torch.testing.assert_close(*gradients)
    assert not torch.equal(gradients[0][0], flex_attention(Q, K, V))


def test_another_seed_drops_others():
    assert not torch.equal(*[compiled(lambda q: flex_attention(q, K, V, mods.dropout(0.5, seed)), Q) for seed in (1, 2)])


@pytest.mark.parametrize("mod, what", [(LOWER_RIGHT, "kv_len|q_len|kv_start|q_start"), (mods.dropout(0.5, 3), "random_uniform")])
def test_torchs_own_functions_have_neither(mod, what):
    with pytest.raises(NotImplementedError, match=f"a mod reads ({what}), .*create_block_mask are accepted"):
        if mod is LOWER_RIGHT:
            torch_flex.create_mask(mod, 1, 1, 5, 9, device="cpu")
        else:
            torch_flex.flex_attention(Q, K, V, mod)
