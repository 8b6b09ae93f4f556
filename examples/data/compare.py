#!/usr/bin/env python3
"""Compares a result with minilm_expected.safetensors, which an independent program computed in float64.

    compare.py OUT.safetensors

Allowed per row of o: 8 * 2^-24 * (1 + max|t|) * magnitude, the rounding of a softmax in f32 whose largest |score| is
max|t|, where magnitude is the row's largest sum of |p v|; plus one rounding of o where it is stored in a narrower type
than f32, and of the expected value, which is stored in f32. lse: the same with max(1, |lse|) as magnitude. Python's
standard library alone; exits with 1 when an element errs by more or is NaN.
"""

import json
import struct
import sys
from pathlib import Path

ROUNDING = {"F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}


def load(path):
    """{name: (dtype, shape, values)} and the metadata."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        raw, dtype = data[begin:end], entry["dtype"]
        if dtype == "F32":
            values = struct.unpack(f"<{len(raw) // 4}f", raw)
        elif dtype == "F16":
            values = struct.unpack(f"<{len(raw) // 2}e", raw)
        elif dtype == "BF16":
            wide = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2))
            values = struct.unpack(f"<{len(wide) // 4}f", wide)
        else:
            continue
        tensors[name] = (dtype, entry["shape"], values)
    return tensors, metadata


def compare(name, result, expected, magnitude, floor):
    """Prints one line; returns whether every element is close enough. `magnitude`: one value per row of `expected`."""
    dtype, shape, values = result
    if shape != expected[1]:
        print(f"{name}: shape {shape}, expected {expected[1]}")
        return False
    width = len(values) // len(magnitude)
    worst, largest, total = 0.0, 0.0, 0.0
    for i, (value, wanted) in enumerate(zip(values, expected[2])):
        error = abs(value - wanted)
        allowed = floor * magnitude[i // width] + (ROUNDING[dtype] + ROUNDING["F32"]) * abs(wanted)
        worst = max(worst, error / allowed if error == error else float("inf"))
        largest, total = max(largest, error), total + error
    verdict = "within" if worst <= 1 else "OUTSIDE"
    print(
        f"{name}: largest error {largest:.1e}, mean {total / len(values):.1e}, "
        f"{verdict} the tolerance ({worst:.2f} of it)"
    )
    return worst <= 1


def main(arguments):
    if len(arguments) != 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    result, _ = load(arguments[0])
    expected, metadata = load(Path(__file__).resolve().parent / "minilm_expected.safetensors")
    floor = 8 * 2.0**-24 * (1 + float(metadata["largest |score|"]))
    o_is_close = compare("o", result["o"], expected["o"], expected["magnitude"][2], floor)
    magnitude = [max(1.0, abs(value)) for value in expected["lse"][2]]
    lse_is_close = compare("lse", result["lse"], expected["lse"], magnitude, floor)
    return 0 if o_is_close and lse_is_close else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
