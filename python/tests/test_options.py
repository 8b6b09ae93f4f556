"""Every option of heddle.attention against the float64 reference, by the library's own criterion: in one call, through
a plan, and refused where it is wrong."""

import inspect

import numpy as np
import pytest

import heddle
from heddle import _core
from heddle._options import BackwardOptions, Options, types_of
from inputs import inputs

Q, K, V = inputs()
PAGES = np.array([[4, 1, 0], [2, 3, 5]], np.int32)
POOL_K, POOL_V = (np.random.default_rng(i).standard_normal((6, 2, 6, 8), np.float32) for i in (1, 2))
PACKED = inputs(batch=1, q_len=20, kv_len=25)
OFFSETS_Q, OFFSETS_KV = np.array([0, 7, 7, 20], np.int32), np.array([0, 9, 12, 25], np.int64)
GATES = np.array([0.5, 2, 1, -1], np.float32)


def gated(score, b, h, q_idx, kv_idx):
    return score * GATES[h] + b


CASES = {
    "nothing": {},
    "score_mod": {"score_mod": gated},
    "mask_mod": {"mask_mod": heddle.mods.causal()},
    "weight_mod": {"weight_mod": lambda b, h, q_idx, kv_idx: (kv_idx % 3) * 0.5},
    "text, captures and params": {
        "score_mod": "score * bias[h] + w * kv_idx", "captures": {"bias": GATES}, "params": {"w": 0.25}},
    "a param of each type": {
        "score_mod": "score * f if c else score", "mask_mod": "kv_idx >= n", "params": {"f": 0.5, "c": True, "n": 3}},
    "numpy's numbers": {"mask_mod": "kv_idx >= n", "params": {"n": np.int64(3)}, "scale": np.float64(0.5)},
    "scale": {"scale": 0.1},
    "sinks": {"sinks": GATES},
    "normalizer none": {"normalizer": "none", "score_mod": gated},
    "normalizer sigmoid": {"normalizer": "sigmoid"},
    "q_lengths": {"q_lengths": np.array([13, 4], np.int32)},
    "kv_lengths": {"kv_lengths": np.array([3, 17], np.int64)},
    "cu_seqlens": {"cu_seqlens_q": OFFSETS_Q, "cu_seqlens_kv": OFFSETS_KV, "mask_mod": heddle.mods.causal()},
    "page_table": {"page_table": PAGES, "kv_lengths": np.array([14, 18], np.int32)},
    "page_starts": {"page_table": np.array([9, 3, 0, 2, 4, 5, -1], np.int32), "page_starts": np.array([1, 3, 6], np.int32),
                    "kv_lengths": np.array([7, 9], np.int32)},
    "q_rest and k_rest": {"q_rest": Q[..., 5:], "k_rest": K[..., 3:]},
    "q_start": {"q_start": np.array([4, -2], np.int32), "mask_mod": heddle.mods.causal()},
    "kv_start": {"kv_start": np.array([-4, 3], np.int64), "mask_mod": heddle.mods.causal()},
    "prefixes": {"page_table": np.array([[4, 1, 0], [4, 1, 5]], np.int32), "prefix_group": np.array([0, 0], np.int32),
                 "prefix_len": np.array([12, 12], np.int32)},
    "max lengths": {"q_lengths": np.array([9, 4]), "kv_lengths": np.array([3, 16]), "max_q_len": 9, "max_kv_len": 16},
    "block_mask": {"block_mask": heddle.BlockMask.build(heddle.mods.causal(), 13, 17, batch=2, heads=4, block=4)},
    "backend": {"backend": "reference"},
    "threads": {"threads": 1},
    "stream": {"stream": 0},
}


def tensors_of(name):
    if name == "cu_seqlens":
        return PACKED
    if name == "q_rest and k_rest":
        return Q[..., :5], K[..., :3], V
    return (Q, POOL_K, POOL_V) if name in ("page_table", "page_starts", "prefixes") else (Q, K, V)


def test_python_and_the_library_have_the_same_options():
    fields = {name for name in dir(_core.Arguments) if not name.startswith("_")}
    assert fields - {"mask_version"} == types_of(BackwardOptions).keys()
    shown = {name for name in inspect.signature(heddle.attention).parameters if name in fields}
    assert shown == types_of(Options).keys() == fields - {"mask_version", "deterministic", "partial_keys"}


def test_unknown_keywords():
    plan = heddle.AttentionPlan(Q, K, V)
    with pytest.raises(TypeError, match=r"^attention\(\) got an unexpected keyword argument 'deterministic'"):
        heddle.attention(Q, K, V, deterministic=True)
    with pytest.raises(TypeError, match=r"^AttentionPlan.run\(\) got an unexpected keyword argument 'scale'"):
        plan.run(Q, K, V, scale=0.5)
    o, lse = heddle.attention(Q, K, V, return_lse=True)
    with pytest.raises(TypeError, match=r"^BackwardPlan.run\(\) got an unexpected keyword argument 'page_table'"):
        heddle.BackwardPlan(Q, K, V, o, lse, o).run(Q, K, V, o, lse, o, page_table=PAGES)


@pytest.mark.parametrize("name", CASES)
def test_each_option(name):
    q, k, v = tensors_of(name)
    options = CASES[name]
    with_lse = "normalizer" not in options
    got = heddle.attention(q, k, v, return_lse=with_lse, **options)
    o, lse = got if with_lse else (got, None)
    report = heddle.check(q, k, v, o, lse, **options)
    assert report, report
    changes_something = name not in ("nothing", "backend", "threads", "stream", "cu_seqlens", "page_table", "page_starts", "prefixes",
                                         "q_rest and k_rest")
    if changes_something:  # else the check might ignore the option as the call does
        assert not heddle.check(q, k, v, o)
    plan = heddle.AttentionPlan(q, k, v, return_lse=with_lse, **options)
    again = plan.run(q, k, v)
    np.testing.assert_array_equal(again[0] if with_lse else again, o)
    assert heddle.explain(q, k, v, **options).stages["plan"]["backend"] == plan.backend
    assert plan.backend == options.get("backend", "cpu")


def test_rows_of_two_arrays_are_those_of_one():
    whole, lse = heddle.attention(Q, K, V, return_lse=True)
    parts = dict(q_rest=Q[..., 5:], k_rest=K[..., 3:])
    o = heddle.attention(Q[..., :5], K[..., :3], V, **parts)
    np.testing.assert_allclose(o, whole, atol=1e-6)
    assert "q[2, 4, 13, 5 + 3] f32 k[.., 2, 17, 3 + 5]" in str(heddle.explain(Q[..., :5], K[..., :3], V, **parts))
    plan = heddle.AttentionPlan(Q[..., :5], K[..., :3], V, **parts)
    np.testing.assert_allclose(plan.run(Q[..., :5], K[..., :3], V, **(parts | {"q_rest": (2 * Q)[..., 5:]})),
                               heddle.attention(np.concatenate([Q[..., :5], 2 * Q[..., 5:]], -1), K, V), atol=1e-6)
    with pytest.raises(ValueError, match="q_rest is f32 .* the planned f32"):
        plan.run(Q[..., :5], K[..., :3], V, **(parts | {"q_rest": Q[..., 4:]}))
    with pytest.raises(ValueError, match=r"^q has head dimension 5 and k 3 \+ 5; the same is accepted"):
        heddle.attention(Q[..., :5], K[..., :3], V, k_rest=K[..., 3:])
    with pytest.raises(ValueError, match="k_rest is f64; f32, k's dtype, is accepted"):
        heddle.attention(Q, K[..., :3], V, k_rest=K[..., 3:].astype(np.float64))
    with pytest.raises(ValueError, match="q_rest is given; a backward takes queries and keys that are one tensor each"):
        heddle.attention_backward(Q[..., :5], K, V, whole, lse, whole, q_rest=Q[..., 5:])


def test_packed_and_paged_are_what_they_say():
    q, k, v = PACKED
    o = heddle.attention(q, k, v, cu_seqlens_q=OFFSETS_Q, cu_seqlens_kv=OFFSETS_KV)
    for a, b, c, d in zip(OFFSETS_Q, OFFSETS_Q[1:], OFFSETS_KV, OFFSETS_KV[1:]):
        want = heddle.attention(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d])
        np.testing.assert_allclose(o[:, :, a:b], want, atol=1e-6)
    lengths = np.array([14, 18], np.int32)
    o = heddle.attention(Q, POOL_K, POOL_V, page_table=PAGES, kv_lengths=lengths)
    flat_k, flat_v = (np.stack([np.concatenate(pool[row], 1) for row in PAGES]) for pool in (POOL_K, POOL_V))
    np.testing.assert_allclose(o, heddle.attention(Q, flat_k, flat_v, kv_lengths=lengths), atol=1e-6)
    used = -(-lengths // POOL_K.shape[2])
    listed = {"page_table": np.concatenate([row[:n] for row, n in zip(PAGES, used)]),
              "page_starts": np.array([0, *np.cumsum(used)], np.int32)}
    np.testing.assert_array_equal(o, heddle.attention(Q, POOL_K, POOL_V, kv_lengths=lengths, **listed))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("out", [None, np.float64, np.float16])
def test_element_types(dtype, out):
    q, k, v = (x.astype(dtype) for x in inputs())
    given = {}
    if out is not None:
        lse_dtype = np.float64 if dtype == np.float64 else np.float32
        given = {"out": np.empty(q.shape, out), "lse": np.empty(q.shape[:3], lse_dtype)}
    o, lse = heddle.attention(q, k, v, return_lse=True, **given)
    assert o.dtype == (out or dtype) and heddle.check(q, k, v, o, lse)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (1, 0, 2, 3), (2, 1, 0, 3)])
def test_strides(order):
    q, k, v = (np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order)) for x in inputs())
    np.testing.assert_array_equal(heddle.attention(q, k, v), heddle.attention(*inputs()))
    reversed_rows = [x[:, :, ::-1] for x in (q, k, v)]
    np.testing.assert_allclose(heddle.attention(*reversed_rows)[:, :, ::-1], heddle.attention(q, k, v), atol=1e-6)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def test_read_only_inputs_are_taken():
    np.testing.assert_array_equal(
        heddle.attention(*(read_only(x) for x in (Q, K, V)), sinks=read_only(GATES)),
        heddle.attention(Q, K, V, sinks=GATES))


O = np.zeros(Q.shape, np.float32)  # noqa: E741
BAD = {
    "q a list": (TypeError, "q is of type list; an array", {"q": [1.0]}),
    "k None": (TypeError, "k is None; an array", {"k": None}),
    "v's element type": (ValueError, "q, k, v are f32, f32, f64", {"v": V.astype(np.float64)}),
    "integers": (ValueError, "q is i32", {"q": Q.astype(np.int32)}),
    "complex numbers": (NotImplementedError, "q has complex elements", {"q": Q.astype(np.complex64)}),
    "masked": (TypeError, "q is of type MaskedArray .*; x.filled", {"q": np.ma.masked_greater(Q, 1)}),
    "rank": (ValueError, "q", {"q": Q[0]}),
    "nine axes": (NotImplementedError, "q has 9 axes; up to 8", {"q": Q.reshape((1,) * 5 + Q.shape)}),
    "heads": (ValueError, "heads", {"k": K[:, :1].repeat(3, 1), "v": V[:, :1].repeat(3, 1)}),
    "o's last stride": (ValueError, "out has strides", {"out": np.zeros((*O.shape[:3], 2 * O.shape[3]), O.dtype)[..., ::2]}),
    "o's shape": (ValueError, "out has shape", {"out": O[:, :, 1:]}),
    "o's element type": (ValueError, "out is i32", {"out": O.astype(np.int32)}),
    "o read-only": (ValueError, "out is read-only; an array that can be written", {"out": read_only(O)}),
    "lse read-only": (ValueError, "lse is read-only", {"out": O, "lse": read_only(O[..., 0])}),
    "o a number": (TypeError, "out is 3; an array", {"out": 3}),
    "o overlaps q": (ValueError, "overlaps q", {"out": Q}),
    "o overlaps itself": (ValueError, "out has shape", {"out": np.lib.stride_tricks.as_strided(O, O.shape, (0, *O.strides[1:]))}),
    "sinks' shape": (ValueError, "sinks", {"sinks": GATES[:2]}),
    "sinks a list": (TypeError, "sinks is of type list; an array", {"sinks": [1.0]}),
    "lengths out of range": (ValueError, "kv_lengths", {"kv_lengths": np.array([3, 18])}),
    "lengths of floats": (ValueError, "kv_lengths", {"kv_lengths": np.array([3.0, 4.0])}),
    "half a packed batch": (ValueError, "cu_seqlens", {"cu_seqlens_q": OFFSETS_Q}),
    "a page that is not there": (
        ValueError, "page", {"k": POOL_K, "v": POOL_V, "page_table": PAGES + 4, "kv_lengths": np.array([14, 18])}),
    "a descale of f32": (ValueError, "q_descale", {"q_descale": np.ones((2, 4), np.float32)}),
    "scale": (TypeError, "scale is 'x'; a float", {"scale": "x"}),
    "threads": (ValueError, "threads", {"threads": -1}),
    "no fresh token": (ValueError, "fresh_tokens is 0; 1 and more are accepted", {"fresh_tokens": 0}),
    "threads a float": (TypeError, "threads is 1.5; an int", {"threads": 1.5}),
    "backend": (ValueError, "backend is 'gpu'; 'automatic'", {"backend": "gpu"}),
    "no GPU's memory": ((ValueError, NotImplementedError), "cuda|CUDA", {"backend": "cuda"}),
    "a param that is no number": (TypeError, "param 'x' is 'y'", {"params": {"x": "y"}}),
    "a param past 32 bits": (ValueError, "param 'x' is 1099511627776", {"params": {"x": 1 << 40}}),
    "a capture that is no array": (
        TypeError, "capture 'x' is of type list", {"mask_mod": "h == 1", "captures": {"x": []}}),
    "an unbound name": (ValueError, "slopes", {"score_mod": "score + slopes[h]"}),
    "an option that is not there": (TypeError, "masks", {"masks": 3}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    error, sentence, given = BAD[name]
    arguments = {"q": Q, "k": K, "v": V, **given}
    with pytest.raises(error, match=sentence or None):
        heddle.attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)


def test_overlap_and_gpu_memory():
    memory = np.zeros((4, 4, 13, 8), np.float32)
    with pytest.raises(ValueError, match="out overlaps q"):
        heddle.attention(memory[:2], K, V, out=memory[1:3])

    class OnGpu:
        """A GPU's array as it looks from here."""

        dtype, shape = "float32", Q.shape

        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **_):
            raise BufferError("of a GPU")

    with pytest.raises(TypeError, match="q is of type OnGpu with elements float32"):
        heddle.attention(OnGpu(), K, V)


def test_a_row_does_not_depend_on_its_batch():
    q, k, v = (np.random.default_rng(1).standard_normal((40, heads, rows, 16)).astype(np.float32)
               for heads, rows in ((4, 1), (2, 700), (2, 700)))
    of_all = heddle.attention(q, k, v, batch_invariant=True)
    for i in (0, 39):
        alone = heddle.attention(q[i:i + 1], k[i:i + 1], v[i:i + 1], batch_invariant=True)
        assert alone.tobytes() == of_all[i:i + 1].tobytes()
    plan = heddle.AttentionPlan(q, k, v, batch_invariant=True)
    assert "batch-invariant" in plan.explain()
    with pytest.raises(ValueError, match="batch_invariant is true; a backward takes false"):
        heddle.attention_backward(q, k, v, of_all, of_all[..., 0].copy(), of_all, batch_invariant=True)


@pytest.mark.parametrize("name", ["b", "h", "score", "q_idx", "exp", "min", "where", "inf", "q_len"])
def test_a_text_cannot_mean_a_capture_named_as_a_word(name):
    """A function's captures are renamed (test_traced_mods.py); a text says `b`, and b is the batch entry."""
    q = np.ones((1, 1, 2, 4), np.float32)
    for given in ({"captures": {name: np.ones(2, np.float32)}}, {"params": {name: 1.0}}):
        with pytest.raises(ValueError, match=f"cannot be named '{name}': the name has a meaning of its own; rename it"):
            heddle.attention(q, q, q, score_mod=f"score + {name}", **given)
