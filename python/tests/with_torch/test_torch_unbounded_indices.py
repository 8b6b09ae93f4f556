"""Indices whose text bounds nothing, such as elements of a tensor: the negative ones count from the end of an axis, as
torch's do."""

import pytest
import torch

from heddle.torch import create_block_mask, flex_attention, trace_counts

Q, K, V = (torch.randn(1, 2, rows, 16, generator=torch.Generator().manual_seed(rows)) for rows in (20, 24, 24))
AT_BOTH_ENDS = torch.tensor([3, -1, 0, -5, 4, -2] * 4)  # of an axis of 5 elements or more


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def mods(table, pairs, ids):
    small, flags = ids.to(torch.int8), ids < 0
    by_bytes = flags.to(torch.uint8)
    return {
        "elements": lambda s, b, h, q, k: s + table[ids[k]],
        "elements of i8": lambda s, b, h, q, k: s + table[small[k].long()],
        "elements of u8": lambda s, b, h, q, k: s + table[by_bytes[k].long()],
        "flags": lambda s, b, h, q, k: s + table[flags[k].int()],
        "their sums": lambda s, b, h, q, k: s + table[(ids[q] + ids[k]) // 2],
        "two axes": lambda s, b, h, q, k: s + pairs[ids[q], ids[k]],
        "an axis and elements": lambda s, b, h, q, k: s + pairs[h, ids[k]],
        "distances": lambda s, b, h, q, k: s + pairs[h - 2, torch.where(q >= k, 0, k - q - 24) // 5],
        "a slice": lambda s, b, h, q, k: s + pairs[1][2:][ids[k] // 2],
        "a slice, bounded": lambda s, b, h, q, k: s + table[2:][k % 3 - 3],
        "an axis that is turned": lambda s, b, h, q, k: s + table.flip(0)[ids[k]],
        "a view": lambda s, b, h, q, k: s + pairs.view(-1)[ids[k]],
        "computed": lambda s, b, h, q, k: s + (pairs.t() * 2 + 1)[ids[k], ids[q]],
        "joined": lambda s, b, h, q, k: s + torch.cat([table, table[:1]])[ids[k]],
        "take": lambda s, b, h, q, k: s + torch.take(pairs, ids[k]),
    }


def reference(query, key, value, score_mod):
    """torch's attention with the dense bias of a mod that adds one."""
    heads, rows, keys = (torch.arange(query.shape[1])[:, None, None], torch.arange(query.shape[2])[:, None],
                         torch.arange(key.shape[2]))
    bias = score_mod(torch.zeros(()), 0, heads, rows, keys)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, bias.expand(2, 20, 24))


@pytest.mark.parametrize("name", mods(numbers(5), numbers(5, 5), AT_BOTH_ENDS))
def test_count_from_the_end(name):
    for length in (5, 9):
        mod = mods(numbers(length), numbers(length, length + 2), AT_BOTH_ENDS)[name]
        o = flex_attention(Q, K, V, score_mod=mod)
        torch.testing.assert_close(o, reference(Q, K, V, score_mod=mod), atol=1e-5, rtol=1e-5)


def test_steps():
    pairs = numbers(6, 7)
    o = flex_attention(Q, K, V, score_mod=lambda s, b, h, q, k: s + pairs[AT_BOTH_ENDS[q]][AT_BOTH_ENDS[k]])
    expected = reference(Q, K, V, lambda s, b, h, q, k: s + pairs[AT_BOTH_ENDS[q], AT_BOTH_ENDS[k]])
    torch.testing.assert_close(o, expected, atol=1e-5, rtol=1e-5)


def test_tables_of_other_lengths_share_a_trace():
    before = trace_counts()["traces"]
    for length in (5, 8, 6, 5):
        table = numbers(length)

        def mod(score, b, h, q, k):
            return score + table[AT_BOTH_ENDS[k]]

        o = flex_attention(Q, K, V, score_mod=mod)
        torch.testing.assert_close(o, reference(Q, K, V, score_mod=mod), atol=1e-5, rtol=1e-5)
    assert trace_counts()["traces"] - before == 1


def test_content_that_changes_between_calls():
    table, ids = numbers(7), AT_BOTH_ENDS.clone()

    def mod(score, b, h, q, k):
        return score + table[ids[k]]

    for _ in range(3):
        o = flex_attention(Q, K, V, score_mod=mod)
        torch.testing.assert_close(o, reference(Q, K, V, score_mod=mod), atol=1e-5, rtol=1e-5)
        ids -= 1


def test_gradients():
    table, other = (numbers(6).requires_grad_() for _ in range(2))
    flex_attention(Q, K, V, score_mod=lambda s, b, h, q, k: s + table[AT_BOTH_ENDS[k]] * table[AT_BOTH_ENDS[q]]).square().sum().backward()
    bias = other[AT_BOTH_ENDS] * other[AT_BOTH_ENDS[:20, None]]
    torch.nn.functional.scaled_dot_product_attention(Q, K, V, bias).square().sum().backward()
    torch.testing.assert_close(table.grad, other.grad, atol=1e-4, rtol=1e-4)


def test_masks():
    keep = numbers(6) > 0

    def mask(b, h, q, k):
        return keep[AT_BOTH_ENDS[k]] | (q == k)

    o = flex_attention(Q, K, V, block_mask=create_block_mask(mask, 1, 1, 20, 24, device="cpu"))
    kept = torch.where(mask(0, 0, torch.arange(20)[:, None], torch.arange(24)), 0.0, float("-inf"))
    torch.testing.assert_close(o, torch.nn.functional.scaled_dot_product_attention(Q, K, V, kept), atol=1e-5, rtol=1e-5)


def test_pages_that_are_not_assigned():
    """A guard keeps what stands at -1 out, wherever that is read from."""
    logical, documents = torch.tensor([0, -1, 1]), torch.arange(16) // 6

    def mask(b, h, q, k):
        position = logical[k // 8] * 8 + k % 8
        return torch.where(position >= 0, documents[position] == documents[q % 16], False)

    o = flex_attention(Q, K, V, block_mask=create_block_mask(mask, 1, 1, 20, 24, device="cpu"))
    position = (logical[:, None] * 8 + torch.arange(8)).flatten()
    seen = (position >= 0) & (documents[position] == documents[torch.arange(20) % 16, None])
    torch.testing.assert_close(o, torch.nn.functional.scaled_dot_product_attention(Q, K, V, seen), atol=1e-5, rtol=1e-5)


def test_compiled_with_other_lengths():
    def attend(query, table, ids):
        return flex_attention(query, K, V, score_mod=lambda s, b, h, q, k: s + table[ids[k]])

    compiled = torch.compile(attend, backend="aot_eager", dynamic=True, fullgraph=True)
    for length in (5, 9, 12):
        table = numbers(length)
        expected = reference(Q, K, V, score_mod=lambda s, b, h, q, k: s + table[AT_BOTH_ENDS[k]])
        torch.testing.assert_close(compiled(Q, table, AT_BOTH_ENDS), expected, atol=1e-5, rtol=1e-5)
