"""Values of other types, for every argument of the public functions: the error says which argument it is. None comes from
nanobind, from NumPy or from Python's own operations."""

import inspect
import re

import numpy as np
import pytest

import heddle
from heddle import mods

X = np.random.default_rng(0).standard_normal((1, 2, 6, 8)).astype(np.float32)
O, LSE = heddle.attention(X, X, X, return_lse=True)
CACHE = np.zeros((1, 2, 9, 8), np.float32)
PLAN = heddle.AttentionPlan(X, X, X)
MASK = heddle.BlockMask.build(mods.causal(), 6, 6, heads=2)
OPTIONS = [*heddle._options.types_of(heddle._options.Options)]
ATTENTION = {"q": X, "k": X, "v": X}
BACKWARD = {**ATTENTION, "o": O, "lse": LSE, "d_o": X}
BACKWARD_PLAN, GRADIENTS = heddle.BackwardPlan(**BACKWARD), heddle.attention_backward(**BACKWARD)


def entered_progress(show):
    with heddle.progress(show):
        pass


WRONG = ["x", "\udcff", object(), {1: X}, 2**70, -1, 2.5, [1], {"a": 1}, 1j, np.zeros((2, 3, 4, 5, 6)), np.zeros(3, np.complex64),
         np.array("x"), b"x", np.array([object()])]
CASES = {
    "attention": (heddle.attention, ATTENTION, [*OPTIONS, "out", "lse", "lse_rest", "max_scores", "return_lse"]),
    "AttentionPlan": (heddle.AttentionPlan, ATTENTION, ["return_lse", "score_mod", "captures"]),
    "AttentionPlan.run": (PLAN.run, ATTENTION, ["out", "lse", "workspace", "stream", "captures", "params", "sinks"]),
    "attention_backward": (heddle.attention_backward, BACKWARD, [
        "d_lse", "dq", "dk", "dv", "d_sinks", "d_captures", "d_params", "lse_rest", "deterministic"]),
    "BackwardPlan": (heddle.BackwardPlan, BACKWARD, ["dq", "d_captures"]),
    "explain": (heddle.explain, ATTENTION, ["return_lse", "score_mod"]),
    "check": (heddle.check, {**ATTENTION, "o": O}, ["lse"]),
    "merge_states": (heddle.merge_states, {"o_parts": [O, O], "lse_parts": [LSE, LSE]}, ["out", "lse", "return_lse", "stream"]),
    "append_kv": (heddle.append_kv, {"k": X, "v": X, "k_cache": CACHE, "v_cache": CACHE.copy(), "kv_lengths": np.array([1])}, [
        "page_table", "rotary_cos", "stream", "cu_seqlens", "q", "q_out", "page_starts"]),
    "BlockMask.build": (heddle.BlockMask.build, {"mask_mod": mods.causal(), "q_len": 6, "kv_len": 6}, [
        "batch", "heads", "block", "q_lengths", "kv_lengths", "cu_seqlens_q", "q_start", "captures", "params", "threads",
        "clamp_reads", "reals"]),
    "find_prefixes": (heddle.find_prefixes, {
        "page_table": np.zeros((2, 2), np.int32), "kv_lengths": np.array([6, 6]), "page_size": 3}, []),
    "param": (heddle.param, {"name": "c", "type": "f32"}, []),
    "BlockMask.update": (MASK.update, {"captures": {}}, ["params"]),
    "BlockMask.row": (MASK.row, {"sequence": 0, "head": 0, "q_block": 0}, []),
    "BlockMask.q_blocks": (MASK.q_blocks, {"sequence": 0}, []),
    "AttentionPlan.update": (PLAN.update, {"captures": {}, "params": {}}, []),
    "BackwardPlan.run": (BACKWARD_PLAN.run, BACKWARD, ["captures", "params", "workspace", "stream"]),
    "check_backward": (heddle.check_backward, {**BACKWARD, "gradients": GRADIENTS}, ["d_lse"]),
    "explain_on": (heddle.explain_on, {"device_name": "h200", **ATTENTION}, ["out", "score_mod", "params"]),
    "explain_backward": (heddle.explain_backward, BACKWARD, ["device_name"]),
    "load": (heddle.load, {"path": "not_there"}, []),
    "save": (heddle.save, {"path": "not_there/x", "tensors": {"x": X}}, ["metadata"]),
    "use_archive": (heddle.use_archive, {"path": "not_there"}, []),
    "missing": (heddle.missing, {"kind": "cuda"}, []),
    "set_event_listener": (heddle.set_event_listener, {"listener": None}, []),
    "set_trace_always": (heddle.set_trace_always, {"always": False}, []),
    "progress": (entered_progress, {"show": None}, []),
    "sliding_window": (mods.sliding_window, {"before": 3, "after": 1}, []),
    "prefix_lm": (mods.prefix_lm, {"prefix": 3}, []),
    "documents": (mods.documents, {"ids": np.arange(6)}, []),
    "relative_bias": (mods.relative_bias, {"table": np.ones((2, 7), np.float32), "max_distance": 3}, []),
    "t5_bias": (mods.t5_bias, {"table": np.ones((2, 32)), "buckets": 32, "max_distance": 128, "bidirectional": True}, []),
    "swin_bias": (mods.swin_bias, {"table": np.ones((2, 9)), "width": 3, "window": 2}, []),
    "graph_bias": (mods.graph_bias, {"distances": np.zeros((6, 6), np.int32), "table": np.ones((2, 4)), "largest": 3}, []),
    "softcap": (mods.softcap, {"cap": 3.0}, []),
    "natten_2d": (mods.natten_2d, {"height": 3, "width": 3, "kernel_y": 1, "kernel_x": 1}, []),
}
# Other words for a name in an error.
OTHER_NAMES = {"q_len": "queries", "kv_len": "keys", "q_lengths": "queries", "kv_lengths": "keys", "o_parts": "lse_parts",
               "q_block": "no row", "kind": "device", "score_mod": "a mod", "mask_mod": "a mod", "weight_mod": "a mod", "prefix": "capture 'array'"}


@pytest.mark.parametrize("name", CASES)
def test_the_argument_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # files get some of these names
    function, given, more = CASES[name]
    said, tried = [], 0
    for argument in [*given, *more]:
        for wrong in WRONG:
            try:
                function(**{**given, argument: wrong})
                continue
            except OSError as error:
                text = f"path: {error}"
            except (TypeError, ValueError, NotImplementedError) as error:
                text = str(error)
            tried += 1
            names = "|".join((rf"\b{argument}\b", rf"\b{argument.rstrip('s')}\b", OTHER_NAMES.get(argument, "^$")))
            if "incompatible function arguments" in text or not re.search(names, text):
                said.append(f"{argument}={wrong!r:.40}: {text:.200}")
    assert said == []
    assert tried > len(given) * 4


def test_every_public_function_is_tried_or_takes_nothing_wrong():
    """A function that is not in CASES has no argument, or only such as others in CASES have."""
    known = {argument for function, given, more in CASES.values() for argument in (*given, *more)}
    for name in mods.__all__:
        function = getattr(mods, name)
        if name not in CASES and name != "Mod":
            assert hasattr(function, "__wrapped__"), f"heddle.mods.{name} looks at no argument"
    assert {*inspect.signature(heddle.attention).parameters} <= known


def test_numbers_of_numpy_are_numbers():
    three, yes = np.int64(3), np.bool_(True)
    built = heddle.BlockMask.build(mods.causal(), three, three, batch=three, heads=three, block=three, clamp_reads=False)
    assert built == heddle.BlockMask.build(mods.causal(), 3, 3, batch=3, heads=3, block=3)
    assert str(mods.prefix_lm(three).expr) == str(mods.prefix_lm(3).expr)
    want = heddle.attention(X, X, X, scale=0.5, mask_mod=mods.sliding_window(3))
    got = heddle.attention(X, X, X, scale=np.float16(0.5), mask_mod=mods.sliding_window(three), threads=np.uint8(1), clamp_reads=yes)
    np.testing.assert_array_equal(got, want)


def test_params_are_single_numbers():
    for wrong in (np.array([1.0, 2.0]), np.zeros(0), np.array([[1, 2]])):
        with pytest.raises(TypeError, match="param 'p' is of type ndarray .*; a float, an int of 32 bits or a bool is accepted"):
            heddle.attention(X, X, X, score_mod="score + p", params={"p": wrong})
    want = heddle.attention(X, X, X, score_mod="score * p", params={"p": 2.0})
    for right in (np.array(2.0), np.array([[2.0]]), np.float16(2)):
        np.testing.assert_array_equal(heddle.attention(X, X, X, score_mod="score * p", params={"p": right}), want)
