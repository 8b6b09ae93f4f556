"""No argument of a public function is ignored: changed, it gives another result or an error."""

import functools

import numpy as np
import pytest
from changed_arguments import ERRORS, Beside, Case, check, flat

import heddle

B, H, S, D = 2, 2, 6, 4
random = np.random.default_rng(3)
q, k, v = (random.standard_normal((B, H, S, D)).astype(np.float32) for _ in range(3))
bias, other = random.standard_normal(S).astype(np.float32), random.standard_normal(S).astype(np.float32)
packed = [x.transpose(1, 0, 2, 3).reshape(1, H, B * S, D).copy() for x in (q, k, v)]
lengths, ends = np.array([6, 4], np.int32), np.array([0, 5, 12], np.int32)
pages = k.reshape(B, H, 2, 3, D).transpose(0, 2, 1, 3, 4).reshape(4, H, 3, D).copy()
table = np.array([[0, 1], [2, 3]], np.int32)
MODS = dict(score_mod="score * a + x[kv_idx]", mask_mod="kv_idx <= q_idx + c", captures={"x": bias},
            params={"a": 2.0, "c": 1})
mask = heddle.BlockMask.build("kv_idx <= q_idx", S, S, batch=B, heads=H, block=2)
LISTED = dict(page_table=table.reshape(-1), page_starts=np.arange(B + 1, dtype=np.int32) * table.shape[1])
PAGED = dict(k=pages, page_table=table, kv_lengths=lengths)
PACKED = dict(zip("qkv", packed), cu_seqlens_q=ends, cu_seqlens_kv=ends)
SPEED = "only the time depends on it"


@functools.wraps(heddle.attention)
def attention(**given):
    """The results, also where the caller gave their memory."""
    made = heddle.attention(**given)
    return made, [given.get(name) for name in ("out", "lse", "lse_rest", "max_scores")]


@functools.wraps(heddle.BlockMask.build)
def build(**given):
    made = heddle.BlockMask.build(**given)
    return made.shape, made.to_lists()


e4m3 = [heddle.Tensor.of(x).to("float8_e4m3fn") for x in (q, k, v)]
scales = np.full((B, H), 2.0, np.float32)
cache, angles = np.zeros((B, H, 9, D), np.float32), random.standard_normal((9, 2)).astype(np.float32)
ANGLES = dict(rotary_cos=angles, rotary_sin=2 * angles)
E4M3_CACHES = {name: heddle.Tensor.of(cache).to("float8_e4m3fn") for name in ("k_cache", "v_cache")}


@functools.wraps(heddle.append_kv)
def append_kv(**given):
    """What is written, of copies."""
    names = [name for name in ("k_cache", "v_cache", "q_out") if given.get(name) is not None]
    copies = {name: given[name].to("f32") if isinstance(given[name], heddle.Tensor) else given[name].copy()
              for name in names}
    if isinstance(given["k_cache"], heddle.Tensor):
        copies |= {name: copies[name].to("e4m3") for name in ("k_cache", "v_cache")}
    heddle.append_kv(**given | copies)
    return [x.to("f32") if isinstance(x, heddle.Tensor) else x for x in copies.values()]


CASES = {
    "attention": Case(
        attention,
        dict(q=q, k=k, v=v, **MODS),
        dict(
            q=q + 1, k=q, v=q, score_mod="score", mask_mod=None, weight_mod="2.0", captures={"x": other},
            params={"a": 3.0, "c": 1}, scale=0.1, out=np.zeros_like(q), lse=Beside(np.zeros((B, H, S), np.float32), out=np.zeros_like(q)),
            lse_rest=Beside(np.zeros((B, H, S), np.float32), out=np.zeros_like(q), lse=np.zeros((B, H, S), np.float32)),
            return_lse=True, max_scores=np.zeros((B, H, S), np.float32), sinks=np.ones(H, np.float32),
            q_lengths=lengths, kv_lengths=lengths, cu_seqlens_q=ends, cu_seqlens_kv=ends, page_table=table,
            page_starts=ends, q_start=np.array([0, 2], np.int32), kv_start=np.array([0, 2], np.int32),
            max_q_len=Beside(5, q_lengths=lengths), max_kv_len=Beside(5, kv_lengths=lengths),
            q_descale=Beside(scales, q=e4m3[0], k=e4m3[1], v=e4m3[2]),
            k_descale=Beside(scales, q=e4m3[0], k=e4m3[1], v=e4m3[2]),
            v_descale=Beside(scales, q=e4m3[0], k=e4m3[1], v=e4m3[2]), normalizer="sigmoid",
            block_mask=Beside(mask, mask_mod=None), backend="cuda",
            q_rest=Beside(3 * q, q_rest=q, k_rest=q), k_rest=Beside(3 * q, q_rest=q, k_rest=q), clamp_reads="yes", tuning="never heard of",
        ),
        dict(threads=SPEED, stream="a GPU's", fresh_tokens="a GPU's",
             prefix_group="a promise", prefix_len="a promise", batch_invariant="of other batches", allow_tf32="a GPU's"),
    ),
    "attention of pages": Case(
        attention,
        dict(q=q, v=pages, **PAGED, max_kv_len=6),
        dict(page_table=table[::-1].copy(), kv_lengths=lengths - 1, max_kv_len=5, k=pages + 1, cu_seqlens_kv=ends),
        is_whole=False,
    ),
    "attention of listed pages": Case(
        attention,
        dict(q=q, v=pages, **(PAGED | LISTED)),
        dict(page_starts=LISTED["page_starts"][[0, 0, 2]].copy(), page_table=LISTED["page_table"][::-1].copy()),
        is_whole=False,
    ),
    "attention of a packed batch": Case(
        attention,
        dict(**PACKED, kv_lengths=np.array([4, 3], np.int32), max_q_len=7, max_kv_len=7),
        dict(
            q=packed[0] + 1, k=packed[1][:, :, ::-1].copy(), v=packed[2][:, :, ::-1].copy(),
            cu_seqlens_q=np.array([0, 6, 12], np.int32), cu_seqlens_kv=np.array([0, 6, 12], np.int32),
            kv_lengths=np.array([4, 4], np.int32), max_q_len=6, max_kv_len=6, q_lengths=lengths, page_table=table),
        is_whole=False,
    ),
    "merge_states": Case(
        heddle.merge_states,
        dict(o_parts=[q, k], lse_parts=[q[..., 0], k[..., 0]]),
        dict(o_parts=[q, v], lse_parts=[q[..., 0], v[..., 0]], out=np.zeros_like(q[:1]),
             lse=np.zeros((1, H, S), np.float32), return_lse=True),
        dict(stream="a GPU's"),
    ),
    "append_kv": Case(
        append_kv,
        dict(k=q, v=k, k_cache=cache, v_cache=cache + 1, kv_lengths=np.array([1, 0], np.int32)),
        dict(
            k=q + 1, v=q, k_cache=cache + 2, v_cache=cache + 3, kv_lengths=np.array([0, 1], np.int32),
            cu_seqlens=np.array([0, 6, 12], np.int32), page_table=np.array([[1], [0]], np.int32),
            page_starts=np.array([0, 1, 2], np.int32),
            k_descale=Beside(scales, **E4M3_CACHES), v_descale=Beside(scales, **E4M3_CACHES),
            rotary_cos=Beside(3 * angles, **ANGLES), rotary_sin=Beside(3 * angles, **ANGLES),
            rotary_positions=Beside(np.array([2, 3], np.int32), **ANGLES), rotary_interleaved=Beside(True, **ANGLES),
            q=Beside(q + 1, **ANGLES, q_out=np.zeros_like(q), q=q), q_out=np.zeros_like(q),
            queries_at_first=Beside(True, **ANGLES, q=q, q_out=np.zeros_like(q))),
        dict(stream="a GPU's"),
    ),
    "BlockMask.build": Case(
        build,
        dict(mask_mod="kv_idx <= q_idx + c and x[kv_idx] < 9.0", q_len=S, kv_len=S, batch=B, heads=H, block=2,
             captures={"x": bias}, params={"c": 1}),
        dict(
            mask_mod="kv_idx <= q_idx and x[kv_idx] < 9.0 and c > 0", q_len=S - 2, kv_len=S - 2, batch=1, heads=1,
            block=3, captures={"x": bias + 10}, params={"c": 0}, q_lengths=[2, 2], kv_lengths=[2, 2], cu_seqlens_q=ends,
            cu_seqlens_kv=ends, q_start=3, kv_start=3, clamp_reads="yes",
            reals=Beside("f64", mask_mod="(16777217 + 0 * kv_idx) * 1.0 > 16777216.0", captures={}, params={})),
        dict(threads=SPEED),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_no_argument_is_ignored(name):
    check(CASES[name])


def test_reads_are_clamped_only_if_asked():
    given = dict(q=q, k=k, v=v, score_mod="score + x[kv_idx + 1]", captures={"x": bias})
    with pytest.raises(ValueError, match="x"):
        heddle.attention(**given)
    assert heddle.attention(**given, clamp_reads=True).shape == q.shape


GRADIENTS = dict(q=q, k=k, v=v, d_o=v + 1, **MODS)


def backward(**changed):
    given = {**GRADIENTS, **changed}
    forward = {name: value for name, value in given.items()
               if name[:2] != "d_" and name not in ("lse_rest", "dq", "dk", "dv", "deterministic")}
    o, lse = heddle.attention(**forward, return_lse=True)
    made = heddle.attention_backward(o=o, lse=lse, **given)
    return [made.dq, made.dk, made.dv, made.d_sinks, made.d_captures, made.d_params]


@pytest.mark.parametrize("option, value", [
    ("d_o", v), ("d_lse", q[..., 0].copy()), ("lse_rest", q[..., 0].copy()), ("dq", False), ("dk", False),
    ("dv", False), ("d_captures", ["x"]), ("d_params", ["a"]), ("scale", 0.3), ("sinks", np.ones(H, np.float32)),
    ("q_lengths", lengths), ("kv_lengths", lengths), ("weight_mod", "2.0"), ("q_start", np.array([0, 2], np.int32)),
    ("normalizer", "none"), ("params", {"a": 1.5, "c": 1}), ("captures", {"x": other}),
])
def test_no_argument_of_the_backward_is_ignored(option, value):
    try:
        assert flat(backward(**{option: value})) != flat(backward()), f"{option} is ignored"
    except ERRORS:
        pass
