"""heddle.Tensor: element types that NumPy does not have."""

import numpy as np
import pytest

import heddle
from inputs import inputs


def test_bf16_in_and_out():
    q, k, v = (heddle.Tensor.of(x).to("bfloat16") for x in inputs())
    o, lse = heddle.attention(q, k, v, return_lse=True)
    assert isinstance(o, heddle.Tensor) and o.dtype == "bfloat16" and isinstance(lse, np.ndarray)
    assert heddle.check(q, k, v, o, lse)
    wide = heddle.attention(*(np.asarray(x) for x in (q, k, v)))
    np.testing.assert_allclose(np.asarray(o), wide, atol=0.02)
    alone = heddle.attention(q, k, v)  # by AMX, weights are coarser where lse is not asked for
    assert heddle.check(q, k, v, alone)
    out = heddle.Tensor.empty(o.shape, "bfloat16")
    assert heddle.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(out.numpy(), alone.numpy())
    plan = heddle.AttentionPlan(q, k, v)
    np.testing.assert_array_equal(plan.run(q, k, v).numpy(), alone.numpy())


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_8_bits_with_descales(dtype):
    q, k, v = (heddle.Tensor.of(x).to(dtype) for x in inputs())
    descales = {
        "q_descale": np.full((2, 4), 0.5, np.float32), "k_descale": np.full((1, 1), 2, np.float32),
        "v_descale": np.full((2, 2), 3, np.float32),
    }
    o = heddle.attention(q, k, v, **descales)
    assert o.dtype == "bfloat16" and heddle.check(q, k, v, o, **descales) and not heddle.check(q, k, v, o)


def test_values_and_bits():
    tensor = heddle.Tensor.from_bits(np.array([0x3F80, 0xC000], np.uint16), "bfloat16")
    np.testing.assert_array_equal(np.asarray(tensor), np.array([1, -2], np.float32))
    np.testing.assert_array_equal(np.asarray(tensor, np.float64), [1.0, -2.0])
    assert (tensor.shape, tensor.ndim, len(tensor), tensor.nbytes) == ((2,), 1, 2, 4)
    assert tensor.numpy().dtype == np.uint16
    assert tensor.device == "cpu" and "bfloat16 (2,) on cpu" in repr(tensor)
    assert tensor.to("float64").numpy().dtype == np.float64 and tensor.cpu().numpy().tolist() == [0x3F80, 0xC000]
    with pytest.raises(ValueError, match="copy=False"):
        tensor.__array__(copy=False)


def test_memory_is_shared_and_kept():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = heddle.Tensor.of(array.T)
    array[0, 1] = 7
    assert tensor.shape == (3, 2) and tensor.numpy()[1, 0] == 7
    shared = heddle.Tensor.empty((4,), "int32").numpy()
    shared[:] = 5  # its tensor is gone
    assert shared.sum() == 20
    taken = np.from_dlpack(heddle.Tensor.of(array))
    array[1, 1] = 9
    assert taken[1, 1] == 9


def test_torch_shares_it():
    torch = pytest.importorskip("torch")
    tensor = heddle.Tensor.of(np.ones(4, np.float32)).to("bfloat16")
    theirs = torch.from_dlpack(tensor)
    assert theirs.dtype == torch.bfloat16 and theirs.sum() == 4
    theirs[0] = 3
    assert np.asarray(tensor)[0] == 3
    q, k, v = (torch.from_numpy(x).bfloat16() for x in inputs())
    got = torch.from_dlpack(heddle.attention(q, k, v)).float()
    want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), enable_gqa=True)
    torch.testing.assert_close(got, want, atol=0.02, rtol=0.02)


def test_arrays_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.ones((1, 1, 2, 8), ml_dtypes.bfloat16)
    tensor = heddle.Tensor.of(array)
    assert tensor.dtype == "bfloat16" and np.asarray(tensor).sum() == 16
    with pytest.raises(TypeError, match="heddle.Tensor.of"):
        heddle.attention(array, array, array)


def test_captures_of_16_bits():
    q, k, v = inputs()
    slopes = np.array([0.5, 1, -2, 0], np.float32)
    short = heddle.Tensor.of(slopes).to("bfloat16")
    np.testing.assert_array_equal(
        heddle.attention(q, k, v, score_mod=heddle.mods.alibi(short)),
        heddle.attention(q, k, v, score_mod=heddle.mods.alibi(slopes)))


@pytest.mark.parametrize(
    "error, sentence, make",
    [
        (ValueError, "dtype is 'float31'", lambda: heddle.Tensor.empty((2,), "float31")),
        (ValueError, "device is 'gpu'", lambda: heddle.Tensor.empty((2,), device="gpu")),
        (ValueError, "device is 'cuda:x'", lambda: heddle.Tensor.empty((2,), device="cuda:x")),
        (ValueError, "array is f32; an element type of 2 bytes",
         lambda: heddle.Tensor.from_bits(np.ones(2, np.float32), "bfloat16")),
        (TypeError, "array is of type list; an array", lambda: heddle.Tensor.of([1.0])),
        (TypeError, "array is None", lambda: heddle.Tensor.from_bits(None, "bfloat16")),
        (ValueError, "array is read-only", lambda: heddle.Tensor.of(np.broadcast_to(np.float32(1), (2, 2)))),
        (ValueError, "complex64", lambda: heddle.Tensor.of(np.ones(2, np.complex64))),
        (TypeError, "no constructor", lambda: heddle.Tensor()),
        (MemoryError, "", lambda: heddle.Tensor.empty((1 << 40, 1 << 20))),
    ],
)
def test_errors(error, sentence, make):
    with pytest.raises(error, match=sentence or None):
        make()
