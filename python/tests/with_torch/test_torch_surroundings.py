"""What surrounds a call: torch's default device, tensors of its inference mode, tensors without elements of their own."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import heddle.mods
from gradient_reference import assert_same, dense, qkv
from heddle.torch import create_block_mask, flashinfer, flex_attention, scaled_dot_product_attention

L = 13


def under_default_devices(q, k, v):
    """Results of calls on the CPU whose code makes tensors: of arrays of NumPy, of lists, of lengths."""
    ids = np.arange(L, dtype=np.int32) // 4
    slopes = np.linspace(0.1, 0.4, 4, dtype=np.float32)
    rows, keys = q[0].transpose(0, 1).float().contiguous(), k[0].transpose(0, 1).float().contiguous()
    documents = create_block_mask(heddle.mods.documents(ids), None, None, L, L, "cpu")
    return [
        flex_attention(q, k, v, heddle.mods.alibi(slopes)),
        flex_attention(q, k, v, None, documents),
        flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: torch.where(q_idx >= kv_idx, score * 2, -torch.inf)),
        documents.to_dense(),
        scaled_dot_product_attention(q, k, v, is_causal=True),
        flashinfer.single_prefill_with_kv_cache(rows, keys, keys, causal=True),
    ]


def test_the_default_device_is_another():
    given = [x.detach() for x in qkv(kv_len=L)]
    want = under_default_devices(*given)
    with torch.device("meta"):
        got = under_default_devices(*given)
    for one, other in zip(got, want, strict=True):
        assert one.device.type == "cpu" and torch.equal(one, other)


def test_tensors_of_inference_mode_where_autograd_records():
    """Autograd keeps none of them; a copy is kept."""
    with torch.inference_mode():
        ids, bias = torch.arange(17) // 5, torch.linspace(0, 1, 4, dtype=torch.float64)
        k, v = (x.detach().clone() for x in qkv()[1:])
        mask = create_block_mask(lambda b, h, q_idx, kv_idx: ids[q_idx] >= ids[kv_idx], None, None, L, 17, "cpu")
    q = qkv()[0]

    def mod(score, b, h, q_idx, kv_idx):
        return score + bias[h]

    def same_document(b, h, q_idx, kv_idx):
        return q_idx // 5 >= kv_idx // 5

    want = torch.autograd.grad(dense(q, k.clone(), v.clone(), None, same_document)[0].square().sum(), [q])
    for _ in range(3):  # the later ones are recognised
        assert_same(torch.autograd.grad(flex_attention(q, k, v, mod, mask).square().sum(), [q]), want, 1e-12)


FREED = """
import torch
from heddle.torch import flex_attention, scaled_dot_product_attention, varlen_attn

x, y, z, starts = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(2, 9, 8), torch.tensor([0, 2], dtype=torch.int32)
x.untyped_storage().resize_(0)
z.untyped_storage().resize_(0)
for turn in range(2):
    for name, call in {
        "query": lambda: flex_attention(x, y, y),
        "key": lambda: flex_attention(y, x, y),
        "value": lambda: scaled_dot_product_attention(y, y, x),
        "capture 'x'": lambda: flex_attention(y, y, y, lambda score, b, h, i, j: score + x[b, h, i, 0]),
        "value ": lambda: varlen_attn(y[0], y[0], z, starts, starts, 9, 9),
    }.items():
        try:
            call()
        except ValueError as error:
            assert str(error).startswith(name) and "null" in str(error), error
        else:
            raise AssertionError(f"{name} was taken")
"""


def test_memory_that_was_freed_is_refused():
    """FSDP frees the storage of parameters so; torch's own operations read address 0."""
    ended = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-500:]


def test_zeros_without_memory_are_still_taken():
    q, k, v = qkv()
    zeros = torch._efficientzerotensor(q.shape, dtype=q.dtype)
    assert torch.equal(flex_attention(zeros, k, v), flex_attention(torch.zeros_like(q), k, v))


def test_tensors_that_hold_no_numbers_of_their_own_are_named():
    x = torch.randn(1, 2, 9, 8)
    for name, wrong in (("quantized", torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)),
                        ("lazy module", torch.nn.UninitializedParameter())):
        for function in (flex_attention, scaled_dot_product_attention):
            with pytest.raises(RuntimeError, match=f"value is .*{name}"):
                function(x, x, wrong)


def test_a_tensor_of_several_ranks_is_named():
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("this torch has no torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        x = DTensor.from_local(torch.randn(1, 2, 9, 8), init_device_mesh("cpu", (2,)), [Shard(1)])
        for function in (flex_attention, scaled_dot_product_attention):
            with pytest.raises(NotImplementedError, match=r"query is a DTensor \[Shard\(dim=1\)\]; .*to_local"):
                function(x, x, x)
    finally:
        dist.destroy_process_group()


def test_errors_of_the_library_have_the_functions_names():
    x = torch.ones(1, 2, 9, 8, dtype=torch.long)
    for function in (flex_attention, scaled_dot_product_attention):
        with pytest.raises(ValueError, match="^query is i64"):
            function(x, x, x)
