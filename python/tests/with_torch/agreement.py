"""Torch's own flex_attention as the reference, and how far a result may be from it."""

import os

import torch
from torch.nn.attention import flex_attention as flex

import heddle.torch

# HEDDLE_TEST_DEVICE=cuda runs the mods' tests on a GPU, in the type that models have there.
DEVICE = os.environ.get("HEDDLE_TEST_DEVICE", "cpu")
DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16

# Torch's eager code, which does not compile: the reference.
flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True


def torchs(query, key, value, score_mod=None, mask_mod=None, shape=(None, None), **options):
    """Torch's flex_attention in f64 of the same inputs, and the same in the inputs' own type."""

    def of(*tensors):
        mask = None
        if mask_mod is not None:
            mask = flex.create_block_mask(mask_mod, *shape, query.shape[2], key.shape[2], query.device)
        return flex.flex_attention(*tensors, score_mod, mask, return_lse=True, **options)

    return of(query.double(), key.double(), value.double()), of(query, key, value)


def assert_agrees(query, key, value, score_mod=None, mask_mod=None, shape=(None, None), **options):
    """heddle's out and lse err at most twice as much as torch's own in the same type, plus a few roundings."""
    (want, want_lse), (plain, plain_lse) = torchs(query, key, value, score_mod, mask_mod, shape, **options)
    mask = None
    if mask_mod is not None:
        mask = heddle.torch.create_block_mask(mask_mod, *shape, query.shape[2], key.shape[2], query.device)
    out, aux = heddle.torch.flex_attention(
        query, key, value, score_mod, mask, return_aux=heddle.torch.AuxRequest(lse=True), **options
    )
    assert out.dtype == query.dtype
    for got, wanted, plains in ((out, want, plain), (aux.lse, want_lse, plain_lse)):
        assert got.shape == wanted.shape
        assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.isinf(), wanted.isinf())
        finite = wanted.isfinite()
        got, wanted, plains = (x[finite].double() for x in (got, wanted, plains))
        if got.numel() == 0:
            continue
        unit = torch.finfo(query.dtype).eps
        largest = (plains - wanted).abs().max() * 2 + 16 * unit * max(1.0, wanted.abs().max().item())
        assert (got - wanted).abs().max() <= largest, (got - wanted).abs().max()
    return out
