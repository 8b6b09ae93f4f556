"""Gradients through every mod and mask that users of torch write, of inputs and of all that the mods read."""

import pytest
import torch

import test_torch_mods as mods
from gradient_reference import assert_same, dense, gradients
from heddle.torch import AuxRequest, create_block_mask, flex_attention

B, H, S, D = mods.B, mods.H, mods.S, mods.D
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}
# torch has no derivative of this autograd.Function; heddle takes that of its operations.
SCALED = {"autograd function": lambda score, b, h, q_idx, kv_idx: torch.tanh(score) * 2}


ROUNDED = {"square root", "casts", "t5 buckets"}  # f32 in the mod itself: float()


@pytest.fixture(params=[torch.float64, torch.float32], ids=["f64", "f32"])
def dtype(request):
    """In f64, quotients of integers are f64, as heddle's are."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def learned(monkeypatch, dtype):
    """The tensors that the mods read, by name: learned, and in f64 all of them f64."""
    made = {}
    for name, x in mods.T.items():
        if x.is_floating_point():
            made[name] = (x.double() if dtype == torch.float64 else x).detach().clone().requires_grad_()
            monkeypatch.setattr(mods, name, made[name])
    for name, module in (("module", mods.SCORES["module"]), ("bound method", mods.SCORES["bound method"].__self__)):
        made[name] = torch.nn.Parameter(module.slopes.detach().to(dtype))
        monkeypatch.setitem(module._parameters, "slopes", made[name])
    return made


def inputs(dtype):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(B, H, S, D, generator=generator, dtype=torch.float64).to(dtype) for _ in range(4)] + [
        torch.randn(B, H, S, generator=generator, dtype=torch.float64).to(dtype)]


def check(dtype, learned, score_mod=None, mask_mod=None, shape=(None, None), reference=None, tolerance=None):
    *qkv, d_out, d_lse = inputs(dtype)
    qkv = [x.requires_grad_() for x in qkv]
    leaves = [*qkv, *learned.values()]
    mask = None if mask_mod is None else create_block_mask(mask_mod, *shape, S, S, "cpu")
    out, aux = flex_attention(*qkv, score_mod, mask, return_aux=AuxRequest(lse=True))
    got = gradients((out, aux.lse), leaves, (d_out, d_lse))
    want = gradients(dense(*qkv, reference or score_mod, mask_mod), leaves, (d_out, d_lse))
    assert_same(got, want, tolerance or TOLERANCE[dtype], ["q", "k", "v", *learned])
    return dict(zip(learned, want[3:]))


READERS = {  # what each mod learns
    "alibi": "slopes", "full bias": "bias", "chained bias": "bias", "batch bias": "batch_bias",
    "bias of one batch": "batch_bias", "transposed bias": "bias", "expanded bias": "bias", "flat bias": "bias",
    "sliced bias": "bias", "last row": "bias", "strided capture": "wide", "key bias": "padding",
    "temperature and gate": "temperature", "half captures": "brain", "clamped table": "table", "t5 buckets": "table",
    "learned": "learned", "0-d captures": "factor", "nested gathers": "slopes", "extrema": "slopes",
    "in place": "slopes", "loop": "gates", "dot of rows": "rows", "sum of a row": "columns", "stacked": "rows",
    "mean": "rows", "module": "module", "bound method": "bound method"}


@pytest.mark.parametrize("name", mods.SCORES)
def test_score_mods(dtype, learned, name):
    tolerance = TOLERANCE[torch.float32] if name in ROUNDED else None
    made = check(dtype, learned, mods.SCORES[name], reference=SCALED.get(name), tolerance=tolerance)
    if READERS.get(name):
        assert made[READERS[name]].any(), "the reference has no gradient, so this test proves nothing"


@pytest.mark.parametrize("name", mods.MASKS)
def test_mask_mods(dtype, learned, name):
    mask, shape = mods.MASKS[name]
    check(dtype, learned, mods.SCORES["alibi"], mask, shape)
