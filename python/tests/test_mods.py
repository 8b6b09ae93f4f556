"""Ready-made mods: each against NumPy, alone, combined, and inside a function."""

import copy
import pickle

import numpy as np
import pytest

import heddle
from heddle import mods
from inputs import inputs

N = 13
i, j = np.ogrid[:N, :N]
IDS = np.array([0] * 4 + [1] * 6 + [2] * 3, np.int64)
PARENTS = np.array([-1, 0, 0, 1, 2, 2, -1, 6, 6, 8, 3, 3, 0], np.int32)


def is_ancestor():
    seen = np.eye(N, dtype=bool)
    for token in range(N):
        parent = PARENTS[token]
        while parent >= 0:
            seen[token, parent] = True
            parent = PARENTS[parent]
    return seen


def seen_in_grid(shape, kernel, tile=1):
    """Neighbourhood attention by its definition: each token sees the kernel around it, moved inside the grid. A token
    stands in a tile of `tile`; places behind the grid see what the border sees, and are seen by nobody."""
    allowed = np.zeros((N, N), bool)
    places = list(np.ndindex(*shape))
    for query in range(min(N, len(places) * tile)):
        begins = [min(max(place - width // 2, 0), extent - width)
                  for place, width, extent in zip(places[query // tile], kernel, shape)]
        for key in range(min(N, len(places) * tile)):
            allowed[query, key] = all(begin <= place < begin + width for begin, place, width in zip(
                begins, places[key // tile], kernel))
    return allowed


def swin(width, window, shift):
    """Windows as sets: window number of each row and column, counted from `shift` tokens before the border."""
    row, column = ((place + window - shift) // window if shift else place // window
                   for place in (np.arange(N) // width, np.arange(N) % width))
    return (row[:, None] == row) & (column[:, None] == column)


def diffusing(length, block):
    """Noisy tokens then clean ones, pair by pair, in the words of the docstring."""
    allowed = np.zeros((N, N), bool)
    for query, key in np.ndindex(N, N):
        own, other = query % length // block, key % length // block
        if key < length:
            allowed[query, key] = query < length and own == other
        else:
            allowed[query, key] = other < own if query < length else other <= own
    return allowed


BEFORE = np.array([4, 1], np.int64)

MASKS = {
    "sinks_and_window": (mods.sinks_and_window(2, 3), (j <= i) & ((j < 2) | (i - j <= 3))),
    "windows_by_head": (mods.windows_by_head(BEFORE), (j <= i) & (i - j <= 4)),
    "causal_chunks": (mods.causal_chunks(5), (j <= i) & (j // 5 == i // 5)),
    "natten_2d": (mods.natten_2d(3, 4, 3, 3), None),
    "natten_3d": (mods.natten_3d(3, 2, 2, 3, 1, 1), None),
    "sliding_tiles_2d": (mods.sliding_tiles_2d(2, 3, 2, 1, 3), None),
    "sliding_tiles_3d": (mods.sliding_tiles_3d(3, 1, 2, 2, 3, 1, 1), None),
    "swin_windows": (mods.swin_windows(4, 2), swin(4, 2, 0)),
    "swin_windows shifted": (mods.swin_windows(4, 2, 1), swin(4, 2, 1)),
    "block_diffusion_training": (mods.block_diffusion_training(7, 3), None),
    "causal": (mods.causal(), j <= i),
    "causal_lower_right": (mods.causal_lower_right(), j <= i),
    "sliding_window": (mods.sliding_window(3, 1), (i - 3 <= j) & (j <= i + 1)),
    "dilated_window": (mods.dilated_window(6, 2), (i - j >= 0) & (i - j <= 6) & ((i - j) % 2 == 0)),
    "prefix_lm": (mods.prefix_lm(4), (j <= i) | (j < 4)),
    "prefix_lm of an array": (mods.prefix_lm(np.array([5, 5], np.int32)), (j <= i) | (j < 5)),
    "global_and_window": (mods.global_and_window(2, 1), (i < 2) | (j < 2) | (abs(i - j) <= 1)),
    "documents": (mods.documents(IDS), IDS[i] == IDS[j]),
    "documents [B, S]": (mods.documents(np.stack([IDS, IDS])), IDS[i] == IDS[j]),
    "documents_from_starts": (
        mods.documents_from_starts(mods.document_starts(np.array([0, 4, 10, 13]))), IDS[i] == IDS[j]),
    "neighbourhood_2d": (
        mods.neighbourhood_2d(4, 1, 2), (abs(i // 4 - j // 4) <= 1) & (abs(i % 4 - j % 4) <= 2)),
    "tree": (mods.tree(*mods.tree_intervals(PARENTS)), is_ancestor()),
    "tree after a text": (mods.tree(*mods.tree_intervals(PARENTS[:9]), first=4), None),
    "block_diffusion": (mods.block_diffusion(4), j // 4 <= i // 4),
    "and": (mods.causal() & mods.documents(IDS), (j <= i) & (IDS[i] == IDS[j])),
    "or, not": (~mods.causal() | mods.sliding_window(1), (j > i) | ((i - 1 <= j) & (j <= i))),
    "and a function": (
        mods.causal() & (lambda b, h, q_idx, kv_idx: IDS[kv_idx] > 0), (j <= i) & (IDS[j] > 0) & (i >= 0)),
    "a function and": ((lambda b, h, q_idx, kv_idx: kv_idx > 2) & mods.documents(IDS), (IDS[i] == IDS[j]) & (j > 2)),
}


# By definitions over the tokens of the grid alone.
OF_GRIDS = {
    "natten_2d": (12, seen_in_grid((3, 4), (3, 3))),
    "natten_3d": (12, seen_in_grid((3, 2, 2), (3, 1, 1))),
    "sliding_tiles_2d": (12, seen_in_grid((2, 3), (1, 3), tile=2)),
    "sliding_tiles_3d": (12, seen_in_grid((3, 1, 2), (3, 1, 1), tile=2)),
    "block_diffusion_training": (13, diffusing(7, 3)),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    mod, allowed = MASKS[name]
    if name in OF_GRIDS:
        tokens, allowed = OF_GRIDS[name]
        shown = str(heddle.BlockMask.build(mod, tokens, tokens, block=1)).splitlines()
        np.testing.assert_array_equal(
            np.array([list(line) for line in shown]) == "#", allowed[:tokens, :tokens])
        return
    if allowed is None:  # 4 tokens of text, which all see, then a draft of 9
        ancestors = is_ancestor()[:9, :9]
        allowed = np.zeros((N, N), bool)
        allowed[:, :4] = True
        allowed[4:, 4:] = ancestors
        mask = heddle.BlockMask.build(mod, 9, N, block=1, q_start=4)
        allowed = allowed[4:]
    else:
        mask = heddle.BlockMask.build(mod, N, N, block=1, batch=2)
    shown = np.array([list(line) for line in str(mask).splitlines()]) == "#"
    np.testing.assert_array_equal(shown, allowed)


def test_a_mod_inside_a_function():
    same = mods.documents(IDS)

    def mask(b, h, q_idx, kv_idx):
        return same(b, h, q_idx, kv_idx) | (kv_idx == 0)

    shown = str(heddle.BlockMask.build(mask, N, N, block=1)).splitlines()
    np.testing.assert_array_equal(np.array([list(line) for line in shown]) == "#", (IDS[i] == IDS[j]) | (j == 0))


def test_a_mod_of_other_arguments():
    q, k, v = inputs()
    slopes, cap = np.array([0.5, 0.25, 1, 2], np.float32)[:q.shape[1]], mods.softcap(2.0)
    alibi = mods.alibi(slopes)
    got = heddle.attention(q, k, v, score_mod=lambda s, b, h, i, j: cap(alibi(s, b, h, i, j), b, h, i, j))
    want = heddle.attention(q, k, v, score_mod=lambda s, b, h, i, j: 2 * heddle.tanh((s + slopes[h] * (j - i)) / 2))
    np.testing.assert_allclose(got, want, atol=1e-6)
    turned = heddle.BlockMask.build(lambda b, h, i, j: mods.causal()(b, h, j, i + 2), N, N, block=1)
    assert turned == heddle.BlockMask.build(lambda b, h, i, j: i + 2 <= j, N, N, block=1)
    ids = np.stack([IDS, IDS[::-1]])
    second = heddle.BlockMask.build(lambda b, h, i, j: mods.documents(ids)(1, h, i, j), N, N, block=1)
    assert second == heddle.BlockMask.build(mods.documents(ids[1]), N, N, block=1)
    with pytest.raises(ValueError, match="kv_idx of a mod must be i32, but `f32.kv_idx.` is f32"):
        heddle.BlockMask.build(lambda b, h, i, j: mods.causal()(b, h, i, heddle.to_f32(j)), N, N)


def t5_bucket(distance, buckets, max_distance, bidirectional):
    """T5's relative_position_bucket, one distance (key - query)."""
    bucket = 0
    if bidirectional:
        buckets //= 2
        bucket += buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = -min(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return bucket + distance
    far = exact + int(np.log(distance / exact) / np.log(max_distance / exact) * (buckets - exact))
    return bucket + min(far, buckets - 1)


def swin_row(q, kv):
    """Swin's relative_position_index of windows of 3 x 3 in an image of 4 columns."""
    rows, columns = (np.clip(part(q) - part(kv), -2, 2) + 2 for part in (lambda x: x // 4, lambda x: x % 4))
    return rows * 5 + columns


def scores():
    random = np.random.default_rng(5)
    slopes, table = random.standard_normal(4).astype(np.float32), random.standard_normal((4, 7)).astype(np.float32)
    t5 = random.standard_normal((8, 4)).astype(np.float32)
    buckets = np.array([[t5_bucket(kv - q, 8, 20, True) for kv in range(17)] for q in range(13)])
    offsets, hops = (random.standard_normal((rows, 4)).astype(np.float32) for rows in (25, 4))
    distances = random.integers(0, 7, (13, 17))
    near = np.minimum(distances, 3)
    q, kv = np.ogrid[:13, :17]
    relative = np.clip(kv - q, -3, 3) + 3
    return {
        "alibi": (mods.alibi(slopes), lambda s: s + slopes[:, None, None] * (kv - q)),
        "relative_bias": (mods.relative_bias(table, 3), lambda s: s + table[:, relative]),
        "t5_bias": (mods.t5_bias(t5, 8, 20, True), lambda s: s + t5[buckets].transpose(2, 0, 1)),
        "softcap": (mods.softcap(2.0), lambda s: 2 * np.tanh(s / 2)),
        "swin_bias": (mods.swin_bias(offsets, 4, 3), lambda s: s + offsets[swin_row(q, kv)].transpose(2, 0, 1)),
        "graph_bias": (mods.graph_bias(distances, hops, 3), lambda s: s + hops[near].transpose(2, 0, 1)),
    }


@pytest.mark.parametrize("name", ["alibi", "relative_bias", "t5_bias", "softcap", "swin_bias", "graph_bias"])
def test_scores(name):
    q, k, v = inputs(kv_heads=4)
    mod, formula = scores()[name]
    s = formula(np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k.astype(np.float64)) / np.sqrt(8))
    p = np.exp(s - s.max(-1, keepdims=True))
    want = np.einsum("bhqk,bhkd->bhqd", p / p.sum(-1, keepdims=True), v.astype(np.float64))
    np.testing.assert_allclose(heddle.attention(q, k, v, score_mod=mod), want, atol=3e-6)
    np.testing.assert_allclose(
        heddle.attention(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: mod(score, b, h, q_idx, kv_idx) + 0 * h),
        want, atol=3e-6)


def test_alibi_slopes():
    np.testing.assert_allclose(mods.alibi_slopes(4), [2.0 ** (-8 * (h + 1) / 4) for h in range(4)], rtol=1e-6)


def test_dropout_drops_its_share_and_the_seed_may_change():
    x = np.eye(64, dtype=np.float32)[None, None]
    ones = np.ones_like(x)
    seed = heddle.param("seed", "i32")

    def weights(value):
        return heddle.attention(
            0 * ones, ones, x, weight_mod=mods.dropout(0.25, seed), params={"seed": value})[0, 0] * 64

    first, second = weights(1), weights(2)
    assert set(np.unique(np.round(first, 4))) == {0, np.float32(1.3333)}
    assert abs((first == 0).mean() - 0.25) < 0.03 and (first != second).any()
    np.testing.assert_array_equal(first, weights(1))


def test_a_repeated_call_traces_nothing(monkeypatch):
    q, k, v = inputs()
    mask = mods.causal() & mods.documents(np.zeros(17, np.int32))
    heddle.attention(q, k, v, mask_mod=mask)
    calls = []
    monkeypatch.setattr(heddle._core, "of_arguments", lambda *_: calls.append(1))
    heddle.attention(q, k, v, mask_mod=mods.causal() & mods.documents(np.ones(17, np.int32)))
    assert not calls


def test_a_mod_of_the_wrong_kind():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="score"):
        heddle.attention(q, k, v, mask_mod=mods.softcap(1.0))
    with pytest.raises(ValueError, match="bool"):
        heddle.attention(q, k, v, score_mod=mods.causal())


@pytest.mark.parametrize(
    "error, sentence, make",
    [
        (ValueError, "-1", lambda: mods.sliding_window(-1)),
        (ValueError, "step", lambda: mods.dilated_window(3, 0)),
        (ValueError, "prefix", lambda: mods.prefix_lm(-2)),
        (ValueError, "width", lambda: mods.neighbourhood_2d(0, 1, 1)),
        (ValueError, "block", lambda: mods.block_diffusion(0)),
        (ValueError, "kernel_x of natten_2d must be odd", lambda: mods.natten_2d(4, 4, 3, 2)),
        (ValueError, "kernel_y of sliding_tiles_2d must be 1 to 2", lambda: mods.sliding_tiles_2d(2, 2, 4, 3, 1)),
        (ValueError, "shift of swin_windows must be 0 to 1", lambda: mods.swin_windows(4, 2, 2)),
        (ValueError, "chunk of causal_chunks", lambda: mods.causal_chunks(0)),
        (TypeError, "before is of type int", lambda: mods.windows_by_head(3)),
        (TypeError, "distances is of type list", lambda: mods.graph_bias([[0]], np.ones((1, 1)), 0)),
        (ValueError, "cap", lambda: mods.softcap(0.0)),
        (ValueError, "p", lambda: mods.dropout(1.0, 3)),
        (ValueError, "seed of dropout must be -2147483648 to 2147483647, but is", lambda: mods.dropout(0.5, 2**31)),
        (ValueError, "seed of dropout must be", lambda: mods.dropout(0.5, np.int64(-2**40))),
        (ValueError, "heads of alibi_slopes must be 1 to 65536, but is 2147483647", lambda: mods.alibi_slopes(2**31 - 1)),
        (ValueError, "offsets of document_starts must end at 268435456 or before",
         lambda: mods.document_starts(np.array([0, 2**31 - 1]))),
        (ValueError, "begin with 0", lambda: mods.document_starts(np.array([1, 2]))),
        (ValueError, "cycle", lambda: mods.tree_intervals(np.array([1, 0]))),
        (ValueError, "heads", lambda: mods.alibi_slopes(0)),
        (TypeError, "ids is of type list; an array", lambda: mods.documents([0, 1])),
        (TypeError, "slopes is of type float", lambda: mods.alibi(0.5)),
        (TypeError, "combines with masks, functions and expressions, not with str", lambda: mods.causal() & "h == 1"),
    ],
)
def test_errors(error, sentence, make):
    with pytest.raises(error, match=sentence):
        make()


def test_pickles_and_copies():
    slopes, ids = np.array([0.5, 0.25], np.float32), np.array([0, 0, 1, 1])
    q = np.random.default_rng(0).standard_normal((1, 2, 4, 8)).astype(np.float32)
    made = {"score_mod": mods.alibi(slopes), "mask_mod": (mods.causal() & mods.documents(ids)) | ~mods.sliding_window(2),
            "weight_mod": mods.dropout(0.25, heddle.param("seed", "i32"))}
    want = heddle.attention(q, q, q, params={"seed": 3}, **made)
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), {name: copy.copy(mod) for name, mod in made.items()}):
        np.testing.assert_array_equal(heddle.attention(q, q, q, params={"seed": 3}, **again), want)
        assert repr(again) == repr(made)
    later = copy.deepcopy(made), copy.copy(made["score_mod"])
    slopes[:] = 0  # a deep copy has its own
    np.testing.assert_array_equal(heddle.attention(q, q, q, params={"seed": 3}, **later[0]), want)
    np.testing.assert_array_equal(heddle.attention(q, q, q, score_mod=later[1]), heddle.attention(q, q, q))
    expr = heddle.tanh(heddle.param("c", "f32")) * heddle.Capture("x", "f16", 1)[3]
    again = pickle.loads(pickle.dumps(expr))
    assert str(again) == str(expr) and again.captures == ["x"] and copy.deepcopy(expr) is not None
    tensor = heddle.Tensor.of(q).to("bfloat16")
    for other in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):
        assert other.dtype == "bfloat16" and np.array_equal(other, tensor)
