"""Inputs that no function takes are named, with what is accepted; the meta device has shapes alone."""

import numpy as np
import pytest
import torch

from heddle.torch import AuxRequest, create_block_mask, flex_attention, scaled_dot_product_attention

NOT_INPUTS = {
    "a list": (lambda x: x.tolist(), "is list; a tensor"), "an array": (lambda x: x.numpy(), "is ndarray; a tensor"),
    "None": (lambda x: None, "is NoneType; a tensor"), "a sparse one": (lambda x: x.to_sparse(), "tensor of torch.sparse_coo; torch.strided"),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("made, message", NOT_INPUTS.values(), ids=NOT_INPUTS)
@pytest.mark.parametrize("function", [flex_attention, scaled_dot_product_attention])
def test_what_is_no_input_is_named(function, made, message, place):
    given = [torch.randn(1, 2, 8, 4) for _ in range(3)]
    given[place] = made(given[place])
    with pytest.raises((TypeError, RuntimeError), match=f"{('query', 'key', 'value')[place]} .*{message}"):
        function(*given)


def test_what_is_no_mod_and_no_mask_is_named():
    x = torch.randn(1, 2, 8, 4)
    for other in ((i for i in ()), torch.ones(8, 8, dtype=torch.bool), lambda b, h, q_idx, kv_idx: q_idx >= kv_idx):
        with pytest.raises(TypeError, match=f"block_mask is {type(other).__name__}; what create_block_mask makes"):
            flex_attention(x, x, x, block_mask=other)
    with pytest.raises(TypeError, match="score_mod is Tensor; a function"):
        flex_attention(x, x, x, torch.ones(8, 8))


def test_captures_without_memory_are_named():
    x, away = torch.randn(1, 2, 8, 4), torch.zeros(8, device="meta")
    with pytest.raises(RuntimeError, match="reads 'away', a tensor of torch.strided on meta; .* on cpu are"):
        flex_attention(x, x, x, lambda score, b, h, q_idx, kv_idx: score + away[kv_idx])
    with pytest.raises(RuntimeError, match="reads 'attn_mask', a tensor of torch.strided on meta"):
        scaled_dot_product_attention(x, x, x, attn_mask=away)


def test_the_meta_device():
    """Shapes without memory, as deferred initialisation has them."""
    x = torch.randn(2, 4, 8, 16, device="meta", requires_grad=True)
    causal = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 8, 8, "meta")
    bias = torch.randn(8, 8, device="meta")
    for out in (flex_attention(x, x, x, lambda score, b, h, q_idx, kv_idx: score + bias[q_idx, kv_idx], causal),
                scaled_dot_product_attention(x, x, x, attn_mask=bias)):
        assert out.is_meta and out.shape == x.shape
        assert torch.autograd.grad(out.sum(), x)[0].is_meta
    with pytest.raises(NotImplementedError, match="max_scores .* the meta device"):
        flex_attention(x, x, x, return_aux=AuxRequest(max_scores=True))


def test_a_table_of_numpy_is_named():
    """NumPy asks the index for its number; the error says what can be indexed."""
    x, table = torch.randn(1, 2, 8, 4), np.ones((8, 8), np.float32)
    with pytest.raises(TypeError, match=r"value of q_idx.*index torch.as_tensor\(table\) instead of a list, a range or an array of NumPy"):
        flex_attention(x, x, x, lambda score, b, h, q_idx, kv_idx: score + table[q_idx, kv_idx])
    with pytest.raises(TypeError, match="value of score > 0.0, which") as caught:
        flex_attention(x, x, x, lambda score, b, h, q_idx, kv_idx: score if score > 0 else -score)
    assert "as_tensor" not in str(caught.value)


COMPLEX = torch.view_as_complex(torch.randn(8, 2, generator=torch.Generator().manual_seed(2)))
QUANTIZED = torch.quantize_per_tensor(torch.linspace(-1, 1, 8), 0.1, 0, torch.qint8)
NESTED = torch.nested.nested_tensor([torch.ones(3), torch.ones(4)], layout=torch.jagged)


@pytest.mark.parametrize(("mod", "said"), [
    (lambda s, b, h, i, j: s + COMPLEX[j].real, "'COMPLEX', a tensor of torch.complex64; its real and imag"),
    (lambda s, b, h, i, j: s + QUANTIZED[j], r"'QUANTIZED', a tensor of torch.qint8; its dequantize\(\)"),
    (lambda s, b, h, i, j: s + NESTED[b, j], r"'NESTED', a nested tensor; tensors of torch.strided are accepted"),
    (lambda s, b, h, i, j: s + NESTED[0][0], r"'NESTED', a nested tensor; tensors of torch.strided are accepted"),
])
def test_tensors_without_elements_of_mods_are_named(mod, said):
    x = torch.randn(1, 1, 8, 8)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match=f"a mod reads {said}"):
            flex_attention(x, x, x, mod)


@pytest.mark.parametrize(("mod", "of"), [
    (lambda s, b, h, i, j: s + COMPLEX.real[j], lambda: COMPLEX.real),
    (lambda s, b, h, i, j: s + COMPLEX.abs()[j], lambda: COMPLEX.abs()),
    (lambda s, b, h, i, j: s + QUANTIZED.dequantize()[j], lambda: QUANTIZED.dequantize()),
])
def test_what_is_taken_before_an_index_is_read(mod, of):
    x = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    want = torch.nn.functional.scaled_dot_product_attention(x, x, x, of().expand(1, 1, 8, 8))
    torch.testing.assert_close(flex_attention(x, x, x, mod), want)
