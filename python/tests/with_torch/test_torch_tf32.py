"""heddle.torch follows torch's switch of f32 products."""

from types import SimpleNamespace

import pytest
import torch

import heddle.torch
from heddle.torch import _tf32
from heddle.torch._call import Call


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


def test_the_switch_is_torchs(precision):
    for name, is_allowed in (("highest", False), ("high", True), ("medium", True), ("highest", False)):
        precision(name)
        assert _tf32.is_allowed() is is_allowed, name
        compiled = torch.compile(lambda x: x if _tf32.is_allowed() else -x, backend="eager", fullgraph=True)
        assert compiled(torch.ones(1)).item() == (1 if is_allowed else -1), name
        torch._dynamo.reset()


def test_compiled_calls_follow_the_switch(precision):
    """Without dynamo's reset: it compiles anew."""
    compiled = torch.compile(lambda x: x if _tf32.is_allowed() else -x, backend="eager", fullgraph=True)
    for name, is_allowed in (("highest", False), ("high", True), ("highest", False)):
        precision(name)
        assert compiled(torch.ones(1)).item() == (1 if is_allowed else -1), name


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9")
def test_other_switches_of_torch(precision):
    """torch.get_float32_matmul_precision() raises beside them."""
    precision("highest")
    matmul, of_cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = matmul.fp32_precision, of_cpu.fp32_precision
    try:
        matmul.fp32_precision = "none"
        for name in ("bf16", "tf32", "ieee", "none"):
            of_cpu.fp32_precision = name
            assert _tf32.is_allowed() is False, name
        of_cpu.fp32_precision = "bf16"
        for name, is_allowed in (("tf32", True), ("ieee", False)):
            matmul.fp32_precision = name
            assert _tf32.is_allowed() is is_allowed, name
    finally:
        matmul.fp32_precision, of_cpu.fp32_precision = before


@pytest.mark.parametrize("dtype, device, wanted", [
    (torch.float32, "cuda", True), (torch.float32, "cpu", None), (torch.bfloat16, "cuda", None),
    (torch.float64, "cuda", None)])
def test_which_calls_ask_for_it(precision, dtype, device, wanted):
    query = SimpleNamespace(dtype=dtype, is_cuda=device == "cuda")
    precision("highest")
    assert _tf32.allow_tf32_for(query) is None
    precision("high")
    assert _tf32.allow_tf32_for(query) is wanted


@pytest.mark.parametrize("attend", [heddle.torch.scaled_dot_product_attention, heddle.torch.flex_attention])
@pytest.mark.parametrize("wanted", [None, True])
def test_calls_have_the_option(monkeypatch, attend, wanted):
    """Each function's calls, whether Python makes them or repeats them; on a CPU products stay exact."""
    asked = []

    def allow(query):
        asked.append(query)
        return wanted

    monkeypatch.setattr("heddle.torch._sdpa.allow_tf32_for", allow)
    monkeypatch.setattr("heddle.torch._flex.allow_tf32_for", allow)
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    made, again = attend(q, k, v), attend(q, k, v)
    assert len(asked) == 2 and torch.equal(made, again)
    torch.testing.assert_close(made, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert (Call(q, k, v, allow_tf32=wanted).arguments().allow_tf32 or None) is wanted
