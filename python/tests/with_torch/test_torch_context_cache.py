"""Decoding with a ContextCache, whose keys are spread over ranks. context_decoding.py has the model and the sequences."""

import pytest
import torch

import context_decoding
from context_judge import MOST

pytestmark = pytest.mark.skipif(MOST < 2, reason="there are no two GPUs")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 3, 4] if MOST >= 4 else [1, 2])
def test_a_cache_over_ranks_generates_the_same_tokens(ranks, n, dtype):
    want, exact = context_decoding.generated(0, torch.float64)
    plain = context_decoding.generated(0, dtype)[1].double()
    replies = ranks.results("generated", n, dtype, ranks=n)
    assert all(torch.equal(logits, replies[0][1]) for _, logits in replies), "the same bits on each rank"
    tokens, logits = replies[0]
    if dtype == torch.float64:
        assert torch.equal(tokens, want)
        torch.testing.assert_close(logits, exact, rtol=1e-12, atol=1e-12)
    else:  # a token of near logits may differ, and what follows it
        error = (logits.double() - exact)[0].abs().max()
        assert error <= 2 * (plain - exact)[0].abs().max() + 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 3, 4] if MOST >= 4 else [1, 2])
def test_sequences_of_a_cache_have_lengths_of_their_own(ranks, n, dtype):
    exact, plain = (context_decoding.ragged(0, dtype, computes) for computes in (torch.float64, dtype))
    replies = ranks.results("ragged", n, dtype, ranks=n)
    for step, wanted in enumerate(exact):
        for number, want in enumerate(wanted):
            got = replies[0][step][number]
            assert all(torch.equal(reply[step][number], got) for reply in replies), "the same bits on each rank"
            finite = want.isfinite()
            assert torch.equal(got.isfinite(), finite)
            error, allowed = ((x.double() - want)[finite].abs().max().item() for x in (got, plain[step][number]))
            unit = 1e-12 if dtype == torch.float64 else 16 * torch.finfo(dtype).eps
            assert error <= 2 * allowed + unit, (step, number)


def test_a_cache_refuses_by_name(ranks):
    n = min(3, MOST)
    for found in ranks.results("refused_by_cache", n, ranks=n):
        parts = ("room for 5 of its 8", "key is torch.float32", "as many rows in both",
                 "counts is [3]; 1 numbers of 0 to 2", "lengths is [4]", "4 rows of sequence 0; at most 3", "has no backward",
                 "ranks disagree on mods and options")
        for text, part in zip(found, parts, strict=True):
            assert part in text
