"""Tensors that a call cannot reach, or whose elements it would lose, are refused by name, and nothing is written."""

import pytest
import torch

from heddle.torch import flex_attention, scaled_dot_product_attention, serving, varlen_attn, varlen_attn_out

STARTS = torch.tensor([0, 3, 8], dtype=torch.int32)
USED = torch.tensor([3, 7], dtype=torch.int32)
TABLE = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)


def packed():
    rows = torch.randn(8, 2, 8)
    return {"query": rows, "key": rows.clone(), "value": rows.clone(), "cu_seq_q": STARTS, "cu_seq_k": STARTS, "max_q": 8, "max_k": 8}


def paged():
    pages = torch.randn(6, 4, 2, 8)
    return {**packed(), "key": pages, "value": pages.clone(), "cu_seq_k": None, "seqused_k": USED, "block_table": TABLE}


def cached():
    pages, rows = torch.zeros(6, 4, 2, 8), torch.randn(2, 1, 2, 8)
    return {"q": rows, "k_cache": pages, "v_cache": pages.clone(), "k": rows.clone(), "v": rows.clone(), "cache_seqlens": USED,
            "page_table": TABLE}


CALLS = {"varlen_attn": (varlen_attn, packed), "pages": (varlen_attn, paged), "with_kvcache": (serving.with_kvcache, cached),
         "varlen_attn_out": (varlen_attn_out, lambda: {"out": torch.empty(8, 2, 8), **packed()})}
TENSORS = [(name, argument) for name, (_, made) in CALLS.items() for argument, x in made().items() if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize(("call", "argument"), TENSORS)
def test_the_meta_device(call, argument):
    function, made = CALLS[call]
    given = made()
    function(**given)
    before = {name: x.clone() for name, x in given.items() if isinstance(x, torch.Tensor)}
    given[argument] = given[argument].to("meta")
    with pytest.raises((RuntimeError, ValueError, TypeError)) as caught:
        function(**given)
    named = "o" if argument == "out" else argument.removesuffix("_cache")
    assert argument in str(caught.value) or f"{named} on meta" in str(caught.value) or f"{named} is on meta" in str(caught.value)
    for name, x in before.items():
        assert name in (argument, "out") or torch.equal(given[name], x)


@pytest.mark.parametrize("attention", [flex_attention, scaled_dot_product_attention])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("learned", [False, True])
def test_complex_elements(attention, dtype, place, learned):
    """The imaginary part is not dropped."""
    inputs = [torch.randn(1, 2, 8, 4, dtype=dtype, requires_grad=learned) for _ in range(3)]
    inputs[place] = inputs[place].float() + 2j
    with pytest.raises((RuntimeError, NotImplementedError), match="complex|same dtype"):
        attention(*inputs)


@pytest.mark.parametrize("argument", ["k_cache", "v_cache"])
def test_caches_of_lazily_negated_elements(argument):
    given = cached()
    given[argument] = torch.zeros(6, 4, 2, 8, dtype=torch.complex64).conj().imag
    with pytest.raises(RuntimeError, match=f"^{argument} has elements that are negated"):
        serving.with_kvcache(**given)
