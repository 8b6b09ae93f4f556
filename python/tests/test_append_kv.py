"""append_kv: rows in their places, in the cache's type, turned; and what it refuses, with nothing written."""

import numpy as np
import pytest

import heddle

B, H, N, D, ROWS = 3, 2, 2, 8, 12
LENGTHS = np.array([0, 5, 10], np.int32)
random = np.random.default_rng(5)


def new_rows(dtype=np.float32):
    return [random.standard_normal((B, H, N, D)).astype(dtype) for _ in range(2)]


def caches(*shape, dtype=np.float32):
    return [random.standard_normal(shape).astype(dtype) for _ in range(2)]


def test_rows_of_a_cache():
    k, v = new_rows()
    for dtype in (np.float32, np.float16, np.float64):
        k_cache, v_cache = caches(B, H, ROWS, D, dtype=dtype)
        want = k_cache.copy(), v_cache.copy()
        heddle.append_kv(k, v, k_cache, v_cache, kv_lengths=LENGTHS)
        for b, length in enumerate(LENGTHS):
            want[0][b, :, length:length + N] = k[b]
            want[1][b, :, length:length + N] = v[b]
        assert (k_cache == want[0]).all() and (v_cache == want[1]).all()


def test_pages_and_packed_rows():
    starts, lengths = np.array([0, 3, 3, 4], np.int64), np.array([2, 7, 0], np.int64)
    k, v = (random.standard_normal((1, H, 4, D)).astype(np.float32) for _ in range(2))
    table = np.array([[4, 0], [1, 2], [3, 5]], np.int32)
    k_cache, v_cache = caches(6, H, 4, D)
    want = k_cache.copy()
    heddle.append_kv(k, v, k_cache, v_cache, kv_lengths=lengths, cu_seqlens=starts, page_table=table)
    want[4, :, 2:], want[0, :, :1], want[3, :, :1] = k[0, :, 0:2], k[0, :, 2:3], k[0, :, 3:]
    assert (k_cache == want).all()


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotary_embedding_depends_on_distances_alone(interleaved):
    """And attention over turned keys and queries is attention over their definition."""
    turned, positions = 6, 40
    angles = np.arange(positions)[:, None] * np.array([1.0, 0.3, 0.05])
    cos, sin = np.cos(angles), np.sin(angles)
    k, v = new_rows(np.float64)
    q = random.standard_normal((B, 2 * H, N, D))

    def definition(x, first):
        x = x.copy()
        for b in range(B):
            for i in range(x.shape[2]):
                for pair in range(turned // 2):
                    c, s = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + turned // 2)
                    turn = np.exp(1j * angles[first[b] + i, pair])
                    z = (x[b, :, i, c] + 1j * x[b, :, i, s]) * turn
                    x[b, :, i, c], x[b, :, i, s] = z.real, z.imag
        return x

    for first in (LENGTHS, LENGTHS + 7):
        k_cache, v_cache = caches(B, H, ROWS, D, dtype=np.float64)
        q_out = np.empty_like(q)
        heddle.append_kv(k, v, k_cache, v_cache, kv_lengths=LENGTHS, rotary_cos=cos, rotary_sin=sin,
                         rotary_interleaved=interleaved, rotary_positions=None if first is LENGTHS else first, q=q,
                         q_out=q_out)
        np.testing.assert_allclose(q_out, definition(q, first), atol=1e-12)
        want = definition(k, first)
        for b, length in enumerate(LENGTHS):
            np.testing.assert_allclose(k_cache[b, :, length:length + N], want[b], atol=1e-12)
            assert (v_cache[b, :, length:length + N] == v[b]).all()
        scores = np.einsum("hid,hjd->hij", q_out[1, ::2], k_cache[1, :, 5:7])
        if first is LENGTHS:
            before = scores
        else:
            np.testing.assert_allclose(scores, before, atol=1e-12)
    heddle.append_kv(k, v, k_cache, v_cache, kv_lengths=LENGTHS, rotary_cos=cos, rotary_sin=sin,
                     rotary_interleaved=interleaved, q=q, q_out=q_out, queries_at_first=True)
    np.testing.assert_allclose(q_out[:, :, 1:], definition(q[:, :, 1:], LENGTHS), atol=1e-12)


def test_factors_of_eight_bits():
    k, v = new_rows()
    factors = 2.0 ** random.integers(-3, 3, (B, H)).astype(np.float32)
    k_cache, v_cache = (heddle.Tensor.of(x).to("e4m3") for x in caches(B, H, ROWS, D))
    heddle.append_kv(k, v, k_cache, v_cache, kv_lengths=LENGTHS, k_descale=factors, v_descale=factors[:1])
    stored = np.asarray(k_cache.to("f32"))
    for b, length in enumerate(LENGTHS):
        got = stored[b, :, length:length + N] * factors[b][:, None, None]
        np.testing.assert_allclose(got, k[b], rtol=0.07, atol=0.02)


def test_keys_alone():
    k, _ = new_rows()
    k_cache, _ = caches(B, H, ROWS, D)
    heddle.append_kv(k, None, k_cache, None, kv_lengths=LENGTHS)
    assert (k_cache[1, :, 5:7] == k[1]).all()


def test_bad_input():
    k, v = new_rows()
    k_cache, v_cache = caches(B, H, ROWS, D)
    before, cos = k_cache.copy(), np.ones((20, 3), np.float32)

    def refuses(error, sentence, **changes):
        given = dict(k=k, v=v, k_cache=k_cache, v_cache=v_cache, kv_lengths=LENGTHS) | changes
        with pytest.raises(error, match=sentence):
            heddle.append_kv(**given)
        assert (k_cache == before).all()

    refuses(ValueError, r"kv_lengths\[2\] is 11, and 2 new rows follow; the cache has room for 12", kv_lengths=LENGTHS + 1)
    refuses(ValueError, "v_cache overlaps k_cache", v_cache=k_cache)
    refuses(TypeError, "k is 3", k=3)
    refuses(TypeError, "v_cache is 3", v_cache=3)
    refuses(TypeError, "k_cache is None", k_cache=None)
    refuses(TypeError, "page_table is 'x'", page_table="x")
    refuses(ValueError, "v is given without v_cache", v_cache=None)
    refuses(ValueError, "rotary_cos is given without rotary_sin", rotary_cos=cos)
    refuses(ValueError, "rotary_positions is given without rotary_cos and rotary_sin", rotary_positions=LENGTHS)
    refuses(ValueError, "q is given without rotary_cos and rotary_sin", q=k, q_out=k.copy())
    frozen = k_cache.copy()
    frozen.flags.writeable = False
    refuses(ValueError, "k_cache is read-only", k_cache=frozen)


def test_find_prefixes():
    table, lengths = np.array([[5, 1, 2], [5, 1, 3], [5, 4, 0], [6, 7, 8]], np.int32), np.array([48, 40, 30, 48])
    group, shared = heddle.find_prefixes(table, lengths, 16)
    assert group.tolist() == [0, 0, -1, -1] and shared.tolist() == [32, 32, 0, 0]
    assert group.dtype == shared.dtype == np.int32
    listed = heddle.find_prefixes(table.reshape(-1), lengths, 16, page_starts=np.arange(5, dtype=np.int32) * 3)
    assert [x.tolist() for x in listed] == [group.tolist(), shared.tolist()]
    with pytest.raises(ValueError, match=r"kv_lengths has shape \[3\]; \[4\] is accepted"):
        heddle.find_prefixes(table, lengths[:3].copy(), 16)
    with pytest.raises(TypeError, match="page_table is 3"):
        heddle.find_prefixes(3, lengths, 16)
