"""No argument of heddle.torch's functions is ignored: changed, it gives another result or an error."""

import functools
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import varlen
from torch.nn.attention.flex_attention import AuxRequest

sys.path.insert(0, str(Path(__file__).parent.parent))
from changed_arguments import Beside, Case, check  # noqa: E402

import heddle.torch  # noqa: E402
from heddle.torch import serving  # noqa: E402

torch.manual_seed(2)
B, H, S, D = 2, 2, 6, 8
q, k, v = (torch.randn(B, H, S, D) for _ in range(3))
grouped = torch.randn(B, 2 * H, S, D)
causal = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx  # noqa: E731
near = lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() < 2  # noqa: E731
twice = lambda score, b, h, q_idx, kv_idx: 2 * score  # noqa: E731
mask = heddle.torch.create_block_mask(causal, 1, 1, S, S, "cpu")

packed = [torch.randn(B * S, H, D) for _ in range(3)]
group = torch.randn(B * S, 2 * H, D)
ends, others = (torch.tensor(x, dtype=torch.int32) for x in ([0, 5, 12], [0, 6, 12]))
pages = [torch.randn(4, 4, H, D) for _ in range(2)]
table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
used = torch.tensor([4, 6], dtype=torch.int32)
e4m3 = [x.to(torch.float8_e4m3fn) for x in packed]
caches = [torch.randn(B, 8, H, D) for _ in range(2)]
e4m3_caches = [x.to(torch.float8_e4m3fn) for x in caches]
scales = torch.full((B, H), 2.0)
new = torch.randn(B, 1, H, D)
VARLEN = dict(zip(("query", "key", "value"), packed), cu_seq_q=ends, cu_seq_k=ends, max_q=7, max_k=7)
SERVING = dict(zip("qkv", packed), cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=7, max_seqlen_k=7)
CACHES = dict(q=torch.randn(B, 2, H, D), k_cache=caches[0], v_cache=caches[1], cache_seqlens=used)
E4M3 = dict(zip("qkv", e4m3))
angles = torch.randn(12, D // 2)
ROTARY = dict(rotary_cos=angles, rotary_sin=angles, k=new, v=new)
E4M3_CACHES = dict(q=e4m3[0][: 2 * B].view(B, 2, H, D), k_cache=e4m3_caches[0], v_cache=e4m3_caches[1])
ASKED_BELOW = "of equal heads it changes nothing"
NO_EFFECT_HERE = "the guide says that it has no effect"


def seeded(function):
    @functools.wraps(function)
    def call(**given):
        torch.manual_seed(1)
        given = {name: x.clone() if name in ("k_cache", "v_cache") and x.dtype != torch.float8_e4m3fn else x
                 for name, x in given.items()}
        made = function(**given)
        return made, [given[name] for name in ("k_cache", "v_cache", "out") if given.get(name) is not None]

    return call


def lists(**given):
    made = heddle.torch.create_block_mask(**given)
    if made.device.type == "meta":
        return "meta"
    return [made.shape, made.BLOCK_SIZE, made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, str(made.device)]


def dense(**given):
    return lists_of(heddle.torch.BlockMask.from_kv_blocks(**given))


def lists_of(made):
    x = torch.ones(1, 1, *made.shape[-2:], 1)[..., 0, :]
    q = torch.arange(made.shape[-2]).view(1, 1, -1, 1) * torch.ones(1, 1, 1, 8) / 50
    out = heddle.torch.flex_attention(q, torch.randn(1, 1, made.shape[-1], 8, generator=torch.Generator().manual_seed(1)),
                                      torch.eye(made.shape[-1])[None, None].clone(), block_mask=made)
    return [made.shape, made.BLOCK_SIZE, out, made.q_indices is None, x.shape]


counts, indices = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[0, 1], [0, 1]]]], dtype=torch.int32)
CASES = {
    "flex_attention": Case(
        heddle.torch.flex_attention,
        dict(query=q, key=k, value=v),
        dict(query=q + 1, key=v, value=k, score_mod=twice, block_mask=mask, scale=0.1,
             return_lse=True, return_aux=AuxRequest(lse=True)),
        dict(kernel_options=NO_EFFECT_HERE, enable_gqa=ASKED_BELOW),
    ),
    "create_block_mask": Case(
        functools.wraps(heddle.torch.create_block_mask)(lists),
        dict(mask_mod=causal, B=2, H=2, Q_LEN=40, KV_LEN=40, device="cpu", BLOCK_SIZE=8),
        dict(mask_mod=near, B=1, H=1, Q_LEN=24, KV_LEN=24, device="meta", BLOCK_SIZE=16, separate_full_blocks=False),
        dict(_compile=NO_EFFECT_HERE),
    ),
    "create_mask": Case(
        heddle.torch.create_mask,
        dict(mod_fn=causal, B=2, H=2, Q_LEN=4, KV_LEN=4, device="cpu"),
        dict(mod_fn=near, B=1, H=1, Q_LEN=3, KV_LEN=3, device="cuda:77"),
    ),
    "BlockMask.from_kv_blocks": Case(
        functools.wraps(heddle.torch.BlockMask.from_kv_blocks)(dense),
        dict(kv_num_blocks=counts, kv_indices=indices, BLOCK_SIZE=4, mask_mod=causal),
        dict(kv_num_blocks=counts[..., [0, 0]], kv_indices=indices.flip(-1), full_kv_num_blocks=counts,
             full_kv_indices=Beside(indices, kv_num_blocks=counts[..., [0, 0]], full_kv_num_blocks=counts - 1,
                                    full_kv_indices=indices.flip(-1)), BLOCK_SIZE=8, mask_mod=None,
             seq_lengths=(7, 8), compute_q_blocks=False),
    ),
    "scaled_dot_product_attention": Case(
        seeded(heddle.torch.scaled_dot_product_attention),
        dict(query=q, key=k, value=v),
        dict(query=q + 1, key=v, value=k, attn_mask=torch.ones(S, S).tril().bool(), dropout_p=0.5, is_causal=True,
             scale=0.1),
        dict(enable_gqa=ASKED_BELOW),
    ),
    "varlen_attn": Case(
        heddle.torch.varlen_attn,
        dict(**VARLEN),
        dict(query=packed[0] + 1, key=packed[2], value=packed[1], cu_seq_q=others, cu_seq_k=others, max_q=6, max_k=6,
             return_aux=varlen.AuxRequest(lse=True), scale=0.1, window_size=(-1, 0), seqused_k=used, block_table=table,
             num_splits=1),
        dict(enable_gqa=ASKED_BELOW),
    ),
    "varlen_attn_out": Case(
        seeded(heddle.torch.varlen_attn_out),
        dict(out=torch.zeros_like(packed[0]), **VARLEN),
        dict(query=packed[0] + 1, key=packed[2], value=packed[1], cu_seq_q=others, cu_seq_k=others, max_q=6, max_k=6,
             return_aux=varlen.AuxRequest(lse=True), scale=0.1, window_size=(-1, 0), seqused_k=used, block_table=table,
             num_splits=1, out=torch.zeros(3)),
        dict(enable_gqa=ASKED_BELOW),
    ),
    "varlen_func": Case(
        seeded(serving.varlen_func),
        dict(**SERVING),
        dict(q=packed[0] + 1, k=packed[2], v=packed[1], cu_seqlens_q=others, cu_seqlens_k=others, max_seqlen_q=6,
             max_seqlen_k=6, seqused_q=used, seqused_k=used, softmax_scale=0.1, causal=True, window_size=(1, 1),
             softcap=1.0,
             sinks=torch.zeros(H), page_table=table, page_starts=used, q_descale=Beside(scales, **E4M3), k_descale=Beside(scales, **E4M3),
             v_descale=Beside(scales, **E4M3), score_mod=twice, mask_mod=near, out=torch.zeros_like(packed[0]),
             return_softmax_lse=True, 
             q_rest=Beside(3 * packed[0], q_rest=packed[0], k_rest=packed[0]),
             k_rest=Beside(3 * packed[0], q_rest=packed[0], k_rest=packed[0])),
        dict(version="it tells a GPU that a mask's tensors have changed"),
    ),
    "with_kvcache": Case(
        seeded(serving.with_kvcache),
        dict(**CACHES),
        dict(q=CACHES["q"] + 1, k_cache=caches[1], v_cache=caches[0], k=Beside(new, v=None), v=Beside(new, k=None),
             cache_seqlens=used - 1, page_table=table, page_starts=used, max_seqlen_k=2,
             cache_batch_idx=torch.tensor([1, 0]), cache_leftpad=used - 3,
             rotary_cos=Beside(2 * angles, **ROTARY), rotary_sin=Beside(2 * angles, **ROTARY),
             rotary_interleaved=Beside(False, **ROTARY), rotary_seqlens=Beside(used + 1, **ROTARY),
             softmax_scale=0.1, causal=True, window_size=(1, 1), softcap=1.0,
             sinks=torch.zeros(H), q_descale=Beside(scales, **E4M3_CACHES), k_descale=Beside(scales, **E4M3_CACHES),
             v_descale=Beside(scales, **E4M3_CACHES), score_mod=twice, mask_mod=near,
             out=torch.zeros_like(CACHES["q"]), return_softmax_lse=True),
        dict(version="it tells a GPU that a mask's tensors have changed",
             batch_invariant="a promise about other batches", prefix_group="a caller's promise",
             prefix_len="a caller's promise"),
    ),
}

@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_no_argument_is_ignored(name):
    check(CASES[name])


def test_enable_gqa():
    for call in (
        lambda **options: heddle.torch.flex_attention(grouped, k, v, **options),
        lambda **options: heddle.torch.scaled_dot_product_attention(grouped, k, v, **options),
        lambda **options: heddle.torch.varlen_attn(group, packed[1], packed[2], ends, ends, 7, 7, **options),
    ):
        call(enable_gqa=True)
        with pytest.raises((ValueError, RuntimeError)):
            call()


def test_pages_and_appended_rows():
    given = dict(CACHES, k_cache=pages[0], v_cache=pages[1], page_table=table)
    check(Case(seeded(serving.with_kvcache), given, dict(
        page_table=table.flip(0), cache_seqlens=used - 1, k_cache=pages[1], v_cache=pages[0],
        k=Beside(new + 1, v=new, k=new), v=Beside(new + 1, v=new, k=new)),
        is_whole=False))
    for wrong in (-1, 4):
        bad = table.clone()
        bad[1, 1] = wrong  # where the new row of the second sequence goes
        before = pages[0].clone()
        with pytest.raises(ValueError, match=rf"page_table\[1, 1\] is {wrong}"):
            serving.with_kvcache(**dict(given, page_table=bad), k=new, v=new)
        assert torch.equal(pages[0], before)
    unassigned = torch.tensor([[0, -1], [2, 3]], dtype=torch.int32)  # the first sequence fills one page
    want = serving.with_kvcache(**given)
    assert torch.equal(serving.with_kvcache(**dict(given, page_table=unassigned)), want)
    with pytest.raises(ValueError, match=r"cache_seqlens\[1\] is -2"):
        serving.with_kvcache(**dict(given, cache_seqlens=torch.tensor([4, -2], dtype=torch.int32)), k=new, v=new)


@pytest.mark.parametrize("kind", [heddle.torch.BlockMask, torch.nn.attention.flex_attention.BlockMask])
def test_entries_behind_the_counts_are_nothing(kind):
    """Whatever stands there: -1, a number that is no column, another block."""
    x = torch.randn(1, 1, 32, 8)
    want = None
    for filler in (1, -1, 99, -(2**31)):
        rows = indices.clone()
        rows[0, 0, 0, 1] = filler
        made = kind.from_kv_blocks(counts, rows, BLOCK_SIZE=16, mask_mod=causal, compute_q_blocks=filler == 1)
        got = heddle.torch.flex_attention(x, x, x, block_mask=made)
        want = got if want is None else want
        assert torch.equal(got, want)
        if kind is heddle.torch.BlockMask:
            assert made.to_dense().tolist() == [[[[1, 0], [1, 1]]]] or filler not in (1,)
            assert torch.equal(heddle.torch.flex_attention(x[:, :, :16], x[:, :, :16], x[:, :, :16],
                                                           block_mask=made._adjust(16, 16)), want[:, :, :16])
    for wrong in (-2, 2):  # -1 is the block of a page that is not assigned
        rows = indices.clone()
        rows[0, 0, 1, 0] = wrong
        made = kind.from_kv_blocks(counts, rows, BLOCK_SIZE=16, mask_mod=causal, compute_q_blocks=False)
        with pytest.raises(ValueError, match=str(wrong)):
            heddle.torch.flex_attention(x, x, x, block_mask=made)
