"""torch.export with a dynamic length that a mod reads: the program runs for other lengths."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.nn.attention import flex_attention as torch_flex

from heddle.torch import create_block_mask, flex_attention

MODS = {
    "divided": lambda length: lambda s, b, h, q_idx, kv_idx: s + (kv_idx - q_idx) / length,
    "subtracted": lambda length: lambda s, b, h, q_idx, kv_idx: s - 0.1 * (length - kv_idx),
    "compared": lambda length: lambda s, b, h, q_idx, kv_idx: torch.where(kv_idx < length // 2, s, 2.0 * s),
    "computed": lambda length: lambda s, b, h, q_idx, kv_idx: s + (2 * length - 1 - kv_idx) * 0.01 + length * h,
    "alone": lambda length: lambda s, b, h, q_idx, kv_idx: s + torch.minimum(kv_idx, q_idx) % length,
    "inverted": lambda length: lambda s, b, h, q_idx, kv_idx: s + (kv_idx - q_idx) * (1 / length),
    "raised": lambda length: lambda s, b, h, q_idx, kv_idx: s * length ** 0.5 + (length + 1) ** -0.5 * h,
    "halved": lambda length: lambda s, b, h, q_idx, kv_idx: torch.where(kv_idx < length / 2, s, s - kv_idx * (3 / length)),
}


class Model(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, q, k, v):
        return flex_attention(q, k, v, self.make(q.shape[2]))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", MODS)
def test_a_length_in_a_closure(name, strict):
    model = Model(MODS[name])
    given = tuple(torch.randn(2, 2, 20, 8) for _ in range(3))
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=2, max=4096)
    program = torch.export.export(model, given, dynamic_shapes=({0: batch, 2: length},) * 3, strict=strict).module()
    for b, n in ((2, 20), (5, 77), (1, 33)):
        other = tuple(torch.randn(b, 2, n, 8) for _ in range(3))
        torch.testing.assert_close(program(*other), model(*other))


class OfAShape(torch.nn.Module):
    """A mod that reads a tensor's shape itself."""

    def forward(self, q, k, v):
        return flex_attention(q, k, v, lambda s, b, h, q_idx, kv_idx: s + (kv_idx - q_idx) / k.shape[2] + 1 / q.shape[2] ** 0.5 * h)


@pytest.mark.parametrize("strict", [False, True])
def test_a_length_that_the_mod_reads(strict):
    length = Dim("length", min=2, max=4096)
    given = tuple(torch.randn(2, 2, 20, 8) for _ in range(3))
    program = torch.export.export(OfAShape(), given, dynamic_shapes=({2: length},) * 3, strict=strict).module()
    for n in (20, 33):
        other = tuple(torch.randn(2, 2, n, 8) for _ in range(3))
        torch.testing.assert_close(program(*other), OfAShape()(*other))


class Masked(torch.nn.Module):
    """A mask made inside, which reads the length and a tensor; the queries are the last ones."""

    def forward(self, q, k, v, keep):
        queries, keys = q.shape[2], k.shape[2]

        def near(b, h, q_idx, kv_idx):
            behind = q_idx + (keys - queries) - kv_idx
            return keep[b, kv_idx] & (behind >= 0) & (behind < keys / 3)

        mask = create_block_mask(near, q.shape[0], None, queries, keys, "cpu")
        return flex_attention(q, k, v, block_mask=mask)


@pytest.mark.parametrize("strict", [False, True])
def test_a_block_mask_made_inside(strict):
    batch, queries, keys = Dim("batch", min=1, max=64), Dim("queries", min=2, max=4096), Dim("keys", min=2, max=4096)

    def inputs(b, n, s):
        return *(torch.randn(b, 2, length, 8) for length in (n, s, s)), torch.rand(b, s) > 0.2

    shapes = {0: batch, 2: queries}, {0: batch, 2: keys}, {0: batch, 2: keys}, {0: batch, 1: keys}
    program = torch.export.export(Masked(), inputs(2, 12, 20), dynamic_shapes=shapes, strict=strict).module()
    for sizes in ((2, 12, 20), (5, 30, 77), (3, 7, 33)):
        given = inputs(*sizes)
        torch.testing.assert_close(program(*given), Masked()(*given))


def later_tokens(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class OfLists(torch.nn.Module):
    """torch's block masks: kept by the module, made inside, and made of lists that the program gets."""

    def __init__(self, way):
        super().__init__()
        self.way, self.kept = way, torch_flex.create_block_mask(later_tokens, None, None, 256, 256, "cpu")

    def forward(self, q, k, v, counts, indices):
        mask = self.kept
        if self.way == "inside":
            mask = torch_flex.create_block_mask(later_tokens, None, None, 256, 256, "cpu")
        elif self.way == "given":
            mask = torch_flex.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=128, mask_mod=later_tokens)
        return flex_attention(q, k, v, block_mask=mask)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("way", ["kept", "inside", "given"])
def test_lists_of_torch(way, strict):
    model, given = OfLists(way), [torch.randn(1, 2, 256, 8) for _ in range(3)]
    counts, indices = (torch.tensor(x, dtype=torch.int32) for x in ([[[1, 2]]], [[[[0, 1], [0, 1]]]]))
    program = torch.export.export(model, (*given, counts, indices), strict=strict).module()
    for places in (indices, indices.flip(-1)):
        torch.testing.assert_close(program(*given, counts, places), model(*given, counts, places))


def test_lists_under_a_fake_mode():
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.randn(1, 2, 256, 8)
        assert flex_attention(q, q, q, block_mask=OfLists("kept").kept).shape == q.shape


def test_lists_that_a_transform_maps():
    q = torch.randn(1, 2, 256, 8)

    def attend(width, create):
        mask = create(lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < width), None, None, 256, 256, "cpu")
        return flex_attention(q, q, q, block_mask=mask)

    widths = torch.tensor([3, 50, 400])
    got = torch.vmap(lambda width: attend(width, torch_flex.create_block_mask))(widths)
    torch.testing.assert_close(got, torch.stack([attend(width, create_block_mask) for width in widths]))
