"""Values of other types for every argument of heddle.torch's functions: the error says which argument it is. None comes
from torch's dispatcher, from nanobind or from Python's own operations."""

import inspect
import re

import numpy as np
import pytest
import torch

import heddle.torch
from heddle.torch import flashinfer, serving

X = torch.randn(1, 2, 6, 8)
O, LSE = X, torch.randn(1, 2, 6)
PACKED, STARTS = torch.randn(12, 2, 8), torch.tensor([0, 5, 12], dtype=torch.int32)
CACHE, ROW = torch.zeros(2, 9, 2, 8), torch.randn(2, 8)
WRONG = ["x", object(), 2**70, -1, 2.5, [1], {"a": 1}, 1j, torch.zeros(2, 3, 4, 5, 6), torch.zeros(3, dtype=torch.complex64),
         np.zeros((1, 2, 6, 8), np.float32), X.to_sparse(), torch.zeros(0)]
INPUTS = {"query": X, "key": X, "value": X}


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


CASES = {
    "flex_attention": (heddle.torch.flex_attention, INPUTS),
    "scaled_dot_product_attention": (heddle.torch.scaled_dot_product_attention, INPUTS),
    "create_block_mask": (heddle.torch.create_block_mask, {
        "mask_mod": causal, "B": None, "H": None, "Q_LEN": 6, "KV_LEN": 6, "device": "cpu"}),
    "create_mask": (heddle.torch.create_mask, {
        "mod_fn": causal, "B": None, "H": None, "Q_LEN": 6, "KV_LEN": 6, "device": "cpu"}),
    "varlen_attn": (heddle.torch.varlen_attn, {
        "query": PACKED, "key": PACKED, "value": PACKED, "cu_seq_q": STARTS, "cu_seq_k": STARTS, "max_q": 7, "max_k": 7}),
    "merge_states": (heddle.torch.merge_states, {"o_parts": [O, O], "lse_parts": [LSE, LSE]}),
    "varlen_func": (serving.varlen_func, {
        "q": PACKED, "k": PACKED, "v": PACKED, "cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS, "max_seqlen_q": 7,
        "max_seqlen_k": 7}),
    "with_kvcache": (serving.with_kvcache, {
        "q": torch.randn(2, 1, 2, 8), "k_cache": CACHE, "v_cache": CACHE, "cache_seqlens": torch.tensor([3, 4])}),
    "single_decode": (flashinfer.single_decode_with_kv_cache, {"q": ROW, "k": CACHE[0], "v": CACHE[0]}),
    "single_prefill": (flashinfer.single_prefill_with_kv_cache, {"q": PACKED, "k": CACHE[0], "v": CACHE[0]}),
    "merge_state": (flashinfer.merge_state, {"v_a": PACKED, "s_a": PACKED[..., 0], "v_b": PACKED, "s_b": PACKED[..., 0]}),
}
# Other words for a name in an error, and torch.device's own errors.
OTHER_NAMES = {"query": "quer|q", "key": "k", "value": "v", "cu_seq_q": "cu_seq", "cu_seq_k": "cu_seq", "mod_fn": "mod|mask",
               "device": "device|Device|NVIDIA|long long", "k_cache": "k has|and k", "v_cache": "v has|and v",
               "cache_batch_idx": "page_table", "block_table": "axes", "cache_leftpad": "a mod reads",
               "seqused_q": "a mod reads|seqused_q", "page_table": "k has shape",
               "custom_mask": "a mask_mod|a mod", "packed_custom_mask": "a mod", "v": "values?", "o_parts": "lse_parts"}


@pytest.mark.parametrize("name", CASES)
def test_the_argument_is_named(name):
    function, given = CASES[name]
    said, tried = [], 0
    for argument in inspect.signature(function).parameters:
        for wrong in WRONG if argument not in ("later", "args", "kwargs") else ():
            own = {one: x.clone() if isinstance(x, torch.Tensor) else x for one, x in given.items()}
            try:
                function(**{**own, argument: wrong})
                continue
            except (TypeError, ValueError, NotImplementedError, RuntimeError, AssertionError) as error:
                text = str(error)
            tried += 1
            names = rf"\b({argument}|{OTHER_NAMES.get(argument, argument)})\b"
            if "incompatible function arguments" in text or not re.search(names, text):
                said.append(f"{argument}={wrong!r:.40}: {text:.200}")
    assert said == []
    assert tried > 3 * len(given)


def test_errors_of_the_users_functions_stay():
    def mine(score, b, h, q_idx, kv_idx):
        raise AttributeError("mine has no attribute")

    with pytest.raises(AttributeError, match="mine has no attribute"):
        heddle.torch.flex_attention(X, X, X, mine)
    with pytest.raises(TypeError, match="scale is 'x'; a float is accepted"):
        heddle.torch.flex_attention(X, X, X, scale="x")
