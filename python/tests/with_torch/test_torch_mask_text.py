"""Texts, pictures and the sparsity of block masks: torch's, without its lists and in bounded time and memory."""

import os
import resource
import subprocess
import sys

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from heddle.torch import BlockMask, create_block_mask

MILLION = 1 << 20


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


MASKS = [
    causal,
    lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < 9 * (h + 1)),
    lambda b, h, q_idx, kv_idx: (q_idx // 3 + kv_idx // 5 + b) % 4 == 0,
    lambda b, h, q_idx, kv_idx: (b == 1) & (q_idx >= 0),
    lambda b, h, q_idx, kv_idx: kv_idx < 0,
]


@pytest.mark.parametrize("mask_mod", MASKS)
@pytest.mark.parametrize(("queries", "keys"), [(50, 50), (48, 50), (1, 50), (50, 16)])
def test_text_and_sparsity_make_no_list(mask_mod, queries, keys):
    mask = create_block_mask(mask_mod, 2, 3, queries, keys, "cpu", (16, 8))
    text, sparsity = repr(mask), mask.sparsity()
    assert "kv_indices" not in mask.__dict__ and mask._made_by._lists is None
    torchs = flex.create_block_mask(mask_mod, 2, 3, queries, keys, "cpu", (16, 8))
    assert text == repr(torchs) and sparsity == torchs.sparsity()
    assert mask.kv_indices.shape == torchs.kv_indices.shape
    assert repr(mask) == text and mask.sparsity() == sparsity


@pytest.mark.parametrize("mask_mod", MASKS)
@pytest.mark.parametrize(("queries", "keys"), [(120, 90), (48, 50), (1, 50)])
def test_pictures_are_torchs(mask_mod, queries, keys):
    torchs = flex.create_block_mask(mask_mod, 2, 3, queries, keys, "cpu", (4, 2))
    for made in ("mask", "read", "lists", "one matrix"):
        mask = create_block_mask(mask_mod, 2, 3, queries, keys, "cpu", (4, 2))
        if made == "read":
            assert mask.kv_indices.numel()
        elif made == "lists":
            mask = BlockMask.from_kv_blocks(torchs.kv_num_blocks, torchs.kv_indices, torchs.full_kv_num_blocks,
                                            torchs.full_kv_indices, (4, 2), mask_mod, (queries, keys))
        elif made == "one matrix":
            mask, torchs = mask[1, 2], torchs[1, 2]
        for given in ({}, {"limit": 99}, {"limit": 0}, {"grid_size": 7}, {"grid_size": (5, 40), "limit": 2}, {"grid_size": -1}):
            assert mask.to_string(**given) == torchs.to_string(**given), (made, given)
        assert str(mask) == str(torchs)
        assert made != "mask" or "kv_indices" not in mask.__dict__


def test_text_of_a_huge_mask():
    """Its lists would take 100 GB."""
    mask = create_block_mask(causal, None, None, 1 << 24, 1 << 24, "cpu")
    assert "kv_indices=torch.Size([1, 1, 131072, 131072])" in repr(mask) and "sparsity=50.00%" in repr(mask)
    lines = str(mask).splitlines()
    assert len(lines) == 23 and lines[2].startswith("░░ ") and lines[-2].startswith("█" * 38)


def show_masks_of_a_million_tokens():
    """Run in a process of its own: prints by how many MiB its peak grew."""
    documents = torch.arange(MILLION) // 5000
    masks = {
        "causal": causal,
        "documents": lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]),
        "many runs": lambda b, h, i, j: (i // 128 - j // 128) % 3 == 0,
        "heads": lambda b, h, i, j: (i >= j) & (i - j < 1000 * (h + 1)),
    }
    create_block_mask(causal, None, None, 512, 512, "cpu").to_string()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for mask_mod in masks.values():
        mask = create_block_mask(mask_mod, None, 2, MILLION, MILLION, "cpu")
        texts = repr(mask), str(mask), mask.to_string(8), mask.to_string((3, 50), limit=1), mask._repr_svg_()
        assert all(len(text) < 100_000 for text in texts) and 40.0 < mask.sparsity() < 100.0
        assert "kv_indices" not in mask.__dict__ and mask._made_by._lists is None
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)


def test_pictures_of_a_million_tokens_take_no_memory():
    """Lists of one of these masks are 1 GiB."""
    command = [sys.executable, "-c", "import test_torch_mask_text as here; here.show_masks_of_a_million_tokens()"]
    paths = os.pathsep.join([os.path.dirname(__file__), *map(os.path.abspath, filter(None, sys.path))])
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 100, ran.stdout
