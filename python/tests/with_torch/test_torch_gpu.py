"""The cases that the other tests have on the CPU alone, where HEDDLE_TEST_DEVICE says: shapes and layouts, block masks,
dropout. Packed batches and caches: test_torch_gpu_serving.py; models: test_torch_gpu_models.py."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import device_inputs
import heddle.torch
from agreement import DEVICE, DTYPE, assert_agrees
from device_inputs import alibi, causal, documents, random, slopes
from heddle.torch import create_block_mask, flex_attention, scaled_dot_product_attention

pytestmark = pytest.mark.usefixtures("no_grad")
GENERATOR = device_inputs.GENERATOR

# --- flex_attention ------------------------------------------------------------------------------------------------

SHAPES = {  # of query, key and value
    "head dim 64": ((2, 4, 200, 64), (2, 4, 200, 64), (2, 4, 200, 64)),
    "head dim 80": ((2, 4, 130, 80), (2, 4, 130, 80), (2, 4, 130, 80)),
    "head dim 128": ((1, 4, 333, 128), (1, 4, 333, 128), (1, 4, 333, 128)),
    "head dim 256": ((1, 2, 150, 256), (1, 2, 150, 256), (1, 2, 150, 256)),
    "wider keys": ((1, 2, 150, 192), (1, 2, 150, 192), (1, 2, 150, 128)),
    "one query": ((3, 8, 1, 64), (3, 8, 500, 64), (3, 8, 500, 64)),
    "groups": ((2, 8, 100, 64), (2, 2, 100, 64), (2, 2, 100, 64)),
    "groups of 3, one query": ((2, 6, 1, 128), (2, 2, 300, 128), (2, 2, 300, 128)),
    "shared keys": ((3, 4, 70, 64), (1, 4, 90, 64), (1, 4, 90, 64)),
    "odd head dim": ((1, 2, 70, 40), (1, 2, 70, 40), (1, 2, 70, 24)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    q, k, v = (random(*shape) for shape in SHAPES[name])
    assert_agrees(q, k, v, alibi, causal if q.shape[2] > 1 else None, shape=(q.shape[0], None),
                  enable_gqa=q.shape[1] != k.shape[1])


def test_layouts():
    packed = random(2, 100, 3, 4, 64)
    q, k, v = (x.transpose(1, 2) for x in packed.unbind(2))
    for tensors in ([q, k, v], [random(1, 4, 100, 64).expand(2, 4, 100, 64), k, v], [q, k, random(2, 4, 64, 100).mT],
                    [q, random(2, 4, 100, 128)[..., 1:65], v], [q, k.flip(2), v]):
        out = assert_agrees(*tensors, alibi, causal)
        if tensors[0] is q:
            assert out.stride() == flex.flex_attention(*tensors).stride()


def test_types_of_half_precision():
    q, k, v = (random(2, 4, 200, 64) for _ in range(3))
    for dtype in (torch.float16, torch.bfloat16):
        assert_agrees(*(x.to(dtype) for x in (q, k, v)), alibi, causal)


def test_wide_types():
    q, k, v = (random(2, 4, 200, 64, dtype=torch.float32) for _ in range(3))
    assert_agrees(q, k, v, alibi, causal)
    assert_agrees(q.double(), k.double(), v.double(), None, causal)


@pytest.mark.parametrize("dtype, dim, most", [
    *((torch.float32, dim, 1e-5) for dim in (40, 64, 128, 256, 320, 512)),
    *((torch.bfloat16, dim, 2e-2) for dim in (64, 320, 512)),
    *((torch.float64, dim, 1e-13) for dim in (64, 160, 256)),
])
def test_gradients(dtype, dim, most):
    with torch.enable_grad():
        q, k, v = (random(2, 4, 130, dim, dtype=dtype).requires_grad_() for _ in range(3))
        wide = [x.detach().double().cpu().requires_grad_() for x in (q, k, v)]
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        want = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True)
        pull = random(*out.shape, dtype=dtype)
        out.backward(pull)
        want.backward(pull.double().cpu())
    for x, y in zip((q, k, v), wide):
        assert (x.grad.double().cpu() - y.grad).abs().max() <= most * y.grad.abs().max()


def test_no_rows_and_no_keys():
    q, k = random(1, 2, 5, 64), random(1, 2, 0, 64)
    assert not flex_attention(q, k, k).any() and flex_attention(k, q, q).shape == k.shape


def test_scale():
    q, k, v = (random(1, 4, 300, 64) for _ in range(3))
    assert_agrees(q, k, v, alibi, causal, scale=0.3)


def test_max_scores():
    q, k, v = (random(2, 4, 200, 64) for _ in range(3))
    scores = q.double() @ k.double().mT / 8
    i, j = torch.arange(200, device=DEVICE)[:, None], torch.arange(200, device=DEVICE)
    scores += slopes[:4, None, None] * (j - i) * 0.1

    def few(b, h, q_idx, kv_idx):
        return (kv_idx <= q_idx) & (q_idx % 3 != 0)

    want = scores.masked_fill(~few(0, 0, i, j), -torch.inf).amax(-1)
    mask = create_block_mask(few, None, None, 200, 200, DEVICE)
    out, aux = flex_attention(q, k, v, alibi, mask, return_aux=heddle.torch.AuxRequest(lse=True, max_scores=True))
    torch.testing.assert_close(aux.max_scores.double(), want, atol=1e-5, rtol=1e-5)
    assert_agrees(q, k, v, alibi, few)
    torch.testing.assert_close(out, flex_attention(q, k, v, alibi, mask), atol=2e-2, rtol=2e-2)


def test_new_numbers_and_batches_compile_nothing(kernel_cache):
    def scaled(number):
        # A kernel that no other test of the process has compiled.
        return lambda score, b, h, q_idx, kv_idx: score * number + slopes[h] * slopes[h] * 0.37

    def attend(number, batch):
        q, k, v = (random(batch, 4, 96, 64) for _ in range(3))
        flex_attention(q, k, v, scaled(number), create_block_mask(causal, None, None, 96, 96, DEVICE))

    before = sorted(kernel_cache.rglob("*"))
    attend(0.5, 2)
    kernels, traces = sorted(kernel_cache.rglob("*")), heddle.torch.trace_counts()
    assert (kernels != before) == (DEVICE == "cuda")
    for number, batch in ((0.25, 2), (0.75, 1), (1.5, 3)):
        attend(number, batch)
    assert sorted(kernel_cache.rglob("*")) == kernels and heddle.torch.trace_counts() == traces


# --- block masks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [128, (64, 128), 16])
@pytest.mark.parametrize("mask", [causal, documents], ids=["causal", "documents"])
def test_lists_equal_torchs(mask, block):
    ours, torchs = (create(mask, 3, None, 700, 700, DEVICE, BLOCK_SIZE=block)
                    for create in (create_block_mask, flex.create_block_mask))
    for name in flex.BlockMask._TENSOR_ATTRS:
        one, other = getattr(ours, name), getattr(torchs, name)
        if one is None and other is None:  # the order of a deterministic backward's adds, which nobody asked for
            continue
        assert one.device == other.device and one.dtype == torch.int32 and torch.equal(one, other), name
    assert ours.sparsity() == torchs.sparsity() and torch.equal(ours.to_dense(), torchs.to_dense())


def test_torchs_own_block_masks():
    q, k, v = (random(3, 2, 700, 64) for _ in range(3))
    want = flex_attention(q, k, v, alibi, create_block_mask(documents, 3, None, 700, 700, DEVICE))
    torchs = flex.create_block_mask(documents, 3, None, 700, 700, DEVICE)
    lists = heddle.torch.BlockMask.from_kv_blocks(
        *(getattr(torchs, name) for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")),
        mask_mod=documents, seq_lengths=(700, 700))
    for mask in (torchs, lists):
        for _ in range(2):
            torch.testing.assert_close(flex_attention(q, k, v, alibi, mask), want)


@pytest.mark.parametrize("block", [16, (1, 128), (32, 16), (100, 64), 48])
@pytest.mark.parametrize("queries", [1, 200])
def test_torchs_own_block_masks_in_blocks_of_any_size(block, queries):
    """A GPU's kernels take blocks of 64 and more; the mask_mod says what lists in other blocks say."""
    q, k, v = random(2, 4, queries, 64), random(2, 2, 300, 64), random(2, 2, 300, 64)

    def later(b, h, q_idx, kv_idx):
        return q_idx + 100 >= kv_idx + 7 * h

    mask = flex.create_block_mask(later, None, 4, queries, 300, DEVICE, BLOCK_SIZE=block)
    ours = create_block_mask(later, None, 4, queries, 300, DEVICE)
    got, want = (flex_attention(q, k, v, alibi, x, enable_gqa=True) for x in (mask, ours))
    torch.testing.assert_close(got, want)


def test_blocks_of_pages_that_are_not_assigned():
    """torch's PagedAttention lists them as -1. They are blocks without keys."""
    q, k, v = (random(1, 2, 256, 64) for _ in range(3))
    counts = torch.tensor([[[3, 2]]], dtype=torch.int32, device=DEVICE)
    indices = torch.tensor([[[[-1, 0, 1, -1], [1, -1, -1, 0]]]], dtype=torch.int32, device=DEVICE)
    lists = heddle.torch.BlockMask.from_kv_blocks(counts, indices, mask_mod=causal, seq_lengths=(256, 512))
    k, v = (torch.cat([x, x], 2) for x in (k, v))

    def assigned(b, h, q_idx, kv_idx):
        return causal(b, h, q_idx, kv_idx) & ((q_idx < 128) | (kv_idx >= 128)) & (kv_idx < 256)

    want = flex_attention(q, k, v, alibi, create_block_mask(assigned, None, None, 256, 512, DEVICE))
    torch.testing.assert_close(flex_attention(q, k, v, alibi, lists), want)
    lists.kv_indices[0, 0, 0, 0] = -2
    with pytest.raises(ValueError, match="kv_indices"):
        flex_attention(q, k, v, alibi, lists)


def test_block_masks_of_tensors_that_come_and_go():
    """Another tensor at the address of one that is gone is another mask."""
    q, k, v = (random(1, 2, 256, 64) for _ in range(3))
    for pieces in (1, 2, 4, 8):
        document = (torch.arange(256) // (256 // pieces)).to(DEVICE)

        def mask(b, h, q_idx, kv_idx, document=document):
            return document[q_idx] == document[kv_idx]

        assert_agrees(q, k, v, mask_mod=mask)
        del document, mask


def test_captures_that_change_in_place():
    q, k, v = (random(1, 2, 256, 64) for _ in range(3))
    bias, limit = random(256, dtype=torch.float32), torch.tensor([100], device=DEVICE)

    def score(score, b, h, q_idx, kv_idx):
        return score + bias[kv_idx]

    def few(b, h, q_idx, kv_idx):
        return kv_idx < limit[0]

    for keys in (100, 30, 256, 1):
        bias.mul_(-1.5)
        limit.fill_(keys)
        for _ in range(2):
            assert_agrees(q, k, v, score, few)


def test_masks_on_another_device_are_refused():
    if DEVICE == "cpu":
        pytest.skip("there is one device")
    q = random(1, 2, 128, 64)
    mask = create_block_mask(causal, None, None, 128, 128, "cpu")
    with pytest.raises(RuntimeError, match="same device"):
        flex_attention(q, q, q, block_mask=mask)
    with pytest.raises((RuntimeError, ValueError), match="cpu|CPU"):
        table = torch.ones(128)
        flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score + table[kv_idx])
    assert flex_attention(q, q, q, block_mask=mask.to(DEVICE)).isfinite().all()


# --- scaled_dot_product_attention ----------------------------------------------------------------------------------


def sdpa_agrees(q, k, v, mask=None, **options):
    """Twice the error of torch's own in the same type is allowed."""
    torchs = torch.nn.functional.scaled_dot_product_attention
    exact = None if mask is None else mask if mask.dtype == torch.bool else mask.double()
    want = torchs(q.double(), k.double(), v.double(), exact, **options)
    plain = torchs(q, k, v, mask, **options)
    got = scaled_dot_product_attention(q, k, v, mask, **options)
    assert got.dtype == q.dtype and got.shape == want.shape
    allowed = 2 * (plain.double() - want).abs().max() + 16 * torch.finfo(q.dtype).eps * max(1, want.abs().max().item())
    assert (got.double() - want).abs().max() <= allowed


SDPA = {
    "plain": lambda: {}, "causal": lambda: {"is_causal": True}, "scale": lambda: {"scale": 0.3},
    "bias": lambda: {"mask": random(2, 4, 70, 90)}, "bias of keys": lambda: {"mask": random(2, 1, 1, 90)},
    "bias of all": lambda: {"mask": random(70, 90)}, "bool mask": lambda: {"mask": random(2, 1, 70, 90) > -0.5},
}


@pytest.mark.parametrize("name", SDPA)
def test_sdpa(name):
    sdpa_agrees(random(2, 4, 70, 64), random(2, 4, 90, 64), random(2, 4, 90, 64), **SDPA[name]())


def test_sdpa_of_other_shapes():
    for q, kv, options in (((70, 64), (90, 64), {}), ((3, 70, 64), (3, 90, 64), {}),
                           ((2, 3, 4, 70, 64), (2, 3, 4, 90, 64), {"is_causal": True}),
                           ((2, 8, 70, 64), (2, 2, 90, 64), {"enable_gqa": True}),
                           ((2, 8, 1, 64), (2, 2, 90, 64), {"enable_gqa": True})):
        sdpa_agrees(random(*q), random(*kv), random(*kv), **options)


def test_dropout():
    q, k, ones = random(1, 2, 64, 64), random(1, 2, 64, 64), torch.ones(1, 2, 64, 64, device=DEVICE, dtype=DTYPE)
    torch.manual_seed(5)
    first, second = (scaled_dot_product_attention(q, k, ones, dropout_p=0.25) for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(scaled_dot_product_attention(q, k, ones, dropout_p=0.25), first)
    assert not torch.equal(first, second) and abs(first.float().mean() - 1) < 0.1 and first.float().std() > 0.01
