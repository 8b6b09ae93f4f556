"""The names of element types: NumPy's and PyTorch's, and the library's."""

from __future__ import annotations

from typing import Any

NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint64": "u64",
    "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "bool",
}
LONG_NAMES = {short: name for name, short in NAMES.items()}


def short_name(dtype: Any) -> str:
    """The library's name of an element type: 'bf16' of 'bfloat16', torch.bfloat16, ml_dtypes.bfloat16 or itself.

    Raises ValueError for a type that the library does not have.
    """
    text = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype)).rpartition(".")[2]
    if text not in NAMES and text not in LONG_NAMES:
        raise ValueError(f"dtype is '{text}'; {', '.join(NAMES)} are accepted")
    return NAMES.get(text, text)


def dtype_name(array: Any, name: str = "an array that a mod reads") -> str:
    """The library's name of the element type of an array that a mod reads: 'f32'. Raises ValueError as short_name, with
    the `name` of the array."""
    dtype = array.dtype if getattr(array.dtype, "isnative", True) else array.dtype.newbyteorder("=")
    text = str(dtype).rpartition(".")[2]
    if text not in NAMES:
        raise ValueError(f"{name} has elements {text}; {', '.join(NAMES)} are accepted")
    return NAMES[text]
