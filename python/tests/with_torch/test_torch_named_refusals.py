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
CACHE, ROW, ROWS = torch.zeros(2, 9, 2, 8), torch.randn(2, 8), torch.randn(2, 1, 2, 8)
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
    "merge_states of flashinfer": (flashinfer.merge_states, {"v": torch.randn(3, 2, 2, 8), "s": torch.randn(3, 2, 2)}),
    "merge_state_in_place": (flashinfer.merge_state_in_place, {
        "v": PACKED, "s": PACKED[..., 0], "v_other": PACKED, "s_other": PACKED[..., 0]}),
    "append": (serving.append, {
        "k_cache": CACHE, "v_cache": CACHE, "k": ROWS, "v": ROWS, "lengths": torch.tensor([3, 4])}),
    "append_paged_kv_cache": (flashinfer.append_paged_kv_cache, {
        "append_key": ROWS[:, 0], "append_value": ROWS[:, 0], "batch_indices": torch.tensor([0, 1]), "positions": torch.tensor([0, 3]),
        "paged_kv_cache": (CACHE, CACHE), "kv_indices": torch.tensor([1, 0]), "kv_indptr": torch.tensor([0, 1, 2]),
        "kv_last_page_len": torch.tensor([1, 4])}),
    "get_seq_lens": (flashinfer.get_seq_lens, {
        "kv_indptr": torch.tensor([0, 1, 3]), "kv_last_page_len": torch.tensor([3, 2]), "page_size": 4}),
    "get_batch_indices_positions": (flashinfer.get_batch_indices_positions, {
        "append_indptr": torch.tensor([0, 1, 3]), "seq_lens": torch.tensor([3, 2]), "nnz": 3}),
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


def test_layouts_that_are_none_are_refused():
    for call in (lambda: flashinfer.single_decode_with_kv_cache(ROW, CACHE[0], CACHE[0], kv_layout="nhd"),
                 lambda: flashinfer.single_prefill_with_kv_cache(PACKED, CACHE[0], CACHE[0], kv_layout="nhd"),
                 lambda: flashinfer.BatchPrefillWithRaggedKVCacheWrapper(kv_layout="nhd")):
        with pytest.raises(ValueError, match="kv_layout is 'nhd'; 'NHD' and 'HND' are accepted"):
            call()


def test_numbers_out_of_bounds_are_named():
    q, cache, lengths = torch.randn(2, 1, 2, 8), CACHE.clone(), torch.tensor([3, 4])
    for call, said in (
            (lambda: serving.with_kvcache(q, cache, cache.clone(), cache_seqlens=lengths, softmax_scale=float("nan")), "softmax_scale is nan"),
            (lambda: serving.append(cache, cache.clone(), ROWS, ROWS, lengths + 6), r"lengths\[0\] is 9, and 1 new rows"),
            (lambda: flashinfer.get_batch_indices_positions(torch.tensor([0, 1, 3]), torch.tensor([5, 2]), 4), "nnz is 4; 0 to 3"),
            (lambda: flashinfer.get_batch_indices_positions(torch.tensor([0]), torch.zeros(0, dtype=torch.int64), 1), "nnz is 1; 0 to 0"),
            (lambda: flashinfer.get_seq_lens(torch.tensor([0, 1]), torch.tensor([3, 4]), 4), "kv_last_page_len has shape")):
        with pytest.raises(ValueError, match=said):
            call()


def test_errors_of_the_users_functions_stay():
    def mine(score, b, h, q_idx, kv_idx):
        raise AttributeError("mine has no attribute")

    with pytest.raises(AttributeError, match="mine has no attribute"):
        heddle.torch.flex_attention(X, X, X, mine)
    with pytest.raises(TypeError, match="scale is 'x'; a float is accepted"):
        heddle.torch.flex_attention(X, X, X, scale="x")
