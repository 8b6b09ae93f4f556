"""Tensors that NumPy cannot hold: bf16 and 8-bit floats, and memory of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _core
from ._dtypes import LONG_NAMES, short_name
from ._options import refuse_arrays


class Tensor:
    """A tensor: memory with a shape and an element type, from this library or from another library's array.

    Functions return a heddle.Tensor for element types that NumPy does not have (bfloat16, float8_e4m3fn, float8_e5m2)
    and for GPU memory. All functions of heddle take it, and so does every library that supports DLPack:
    ``torch.from_dlpack(tensor)`` shares the memory. It does not depend on other installed packages.

    >>> import numpy as np, heddle
    >>> q = heddle.Tensor.of(np.ones((1, 1, 2, 8), np.float32)).to("bfloat16")
    >>> o = heddle.attention(q, q, q)
    >>> o
    <heddle.Tensor bfloat16 (1, 1, 2, 8) on cpu>
    >>> np.asarray(o)[0, 0, :, 0]
    array([1., 1.], dtype=float32)
    """

    __slots__ = ("_tensor",)
    _tensor: _core.Tensor

    def __init__(self) -> None:
        raise TypeError("heddle.Tensor has no constructor; Tensor.of, Tensor.from_bits and Tensor.empty make one")

    @classmethod
    def _of(cls, tensor: _core.Tensor) -> Tensor:
        made = object.__new__(cls)
        made._tensor = tensor
        return made

    @staticmethod
    def of(array: Any) -> Tensor:
        """A tensor that shares the memory of a writable array. ml_dtypes arrays (bfloat16, float8_e4m3fn, float8_e5m2)
        are accepted. Raises TypeError for a value that is not an array, ValueError for read-only arrays and other
        element types.

        >>> import numpy as np, heddle
        >>> heddle.Tensor.of(np.zeros((2, 3), np.float16))
        <heddle.Tensor float16 (2, 3) on cpu>
        """
        if not hasattr(array, "dtype"):
            refuse_arrays(TypeError(), {}, {"array": array})
        name = short_name(array.dtype)
        if name in ("bf16", "e4m3", "e5m2") and hasattr(array, "view") and hasattr(array, "__array_interface__"):
            return Tensor.from_bits(array.view("uint16" if name == "bf16" else "uint8"), name)
        return Tensor.from_bits(array, name)

    @staticmethod
    def from_bits(array: Any, dtype: Any) -> Tensor:
        """A tensor that shares the array's memory and reads its bits as another type of the same size, such as NumPy's
        uint16 as bfloat16. Raises ValueError for a type of another size and for read-only arrays, TypeError for a value
        that is not an array.

        >>> import numpy as np, heddle
        >>> float(np.asarray(heddle.Tensor.from_bits(np.array([0x3f80], np.uint16), "bfloat16"))[0])
        1.0
        """
        short = short_name(dtype)
        try:
            return Tensor._of(_core.Tensor.with_bits(array, short))
        except TypeError as error:
            refuse_arrays(error, {"array": array}, {})

    @staticmethod
    def empty(shape: Sequence[int], dtype: Any = "float32", device: str = "cpu") -> Tensor:
        """New uninitialised memory, on "cpu", "cuda", "cuda:1" or "rocm"; aligned to 64 bytes, on a GPU to 256. Raises
        MemoryError, and NotImplementedError for a device that is not there, with the reason.

        >>> import heddle
        >>> heddle.Tensor.empty((2, 3), "float8_e4m3fn").nbytes
        6
        """
        return Tensor._of(_core.Tensor.empty(short_name(dtype), list(shape), *_device(device)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self._tensor.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._tensor.shape)

    @property
    def dtype(self) -> str:
        """The element type as NumPy and PyTorch name it: 'bfloat16'."""
        return LONG_NAMES[self._tensor.dtype]

    @property
    def device(self) -> str:
        """'cpu', 'cuda:0', ..."""
        kind, index = self._tensor.device
        return kind if kind == "cpu" else f"{kind}:{index}"

    @property
    def nbytes(self) -> int:
        """The size of the elements."""
        return self._tensor.nbytes

    def numpy(self) -> Any:
        """A NumPy array that shares the memory. bfloat16 is returned as its bits in uint16, 8-bit floats in uint8: for
        the values use np.asarray(tensor). Raises NotImplementedError for memory of a GPU: `cpu` copies it first."""
        self._refuse_gpu("numpy")
        return self._tensor.numpy()

    def to(self, dtype: Any) -> Tensor:
        """A copy with another element type, each element rounded once, to nearest even. Raises ValueError for an
        unknown type, NotImplementedError for GPU memory."""
        return Tensor._of(self._tensor.to(short_name(dtype)))

    def cpu(self) -> Tensor:
        """A copy on the CPU."""
        return Tensor._of(self._tensor.on("cpu", 0))

    def on(self, device: str) -> Tensor:
        """A copy on a device, complete when this returns: "cpu", "cuda", "cuda:1", "rocm". Raises NotImplementedError
        for a device that does not exist, with the reason."""
        return Tensor._of(self._tensor.on(*_device(device)))

    def _refuse_gpu(self, function: str) -> None:
        if self._tensor.device[0] != "cpu":
            raise NotImplementedError(f"{function} of memory on {self.device}; cpu() copies it first")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The values for NumPy; of element types that it does not have, exactly, as float32."""
        self._refuse_gpu("__array__")
        widened = self._tensor.dtype in ("bf16", "e4m3", "e5m2")
        if widened and copy is False:
            raise ValueError(f"{self.dtype} becomes a NumPy array by a copy; copy=False is refused")
        array = self._tensor.to("f32").numpy() if widened else self._tensor.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy and not widened else array

    def __dlpack__(self, **arguments: Any) -> Any:
        """DLPack's way to share memory. Of a GPU's: wait first for the stream that computed it, unless the consumer's
        stream follows it."""
        return self._tensor.exported().__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's number of the device."""
        kind, index = self._tensor.device
        return (1, 0) if kind == "cpu" else (2, index)

    def __reduce__(self) -> Any:
        return Tensor.from_bits, (self.numpy(), self.dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<heddle.Tensor {self.dtype} {self.shape} on {self.device}>"


def _device(device: str) -> tuple[str, int]:
    kind, _, index = device.partition(":")
    if index and not index.isdecimal():
        raise ValueError(f"device is '{device}'; 'cpu', 'cuda', 'cuda:0', 'rocm:0', ... are accepted")
    return kind, int(index or 0)


def public(result: Any) -> Any:
    """A result of the library as users see it."""
    return Tensor._of(result) if type(result) is _core.Tensor else result
