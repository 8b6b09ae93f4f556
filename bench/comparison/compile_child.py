"""Times the planning of cells in a process of its own: `compile_child.py LIBRARY DEVICE [--backward] CELL...` prints
JSON lines. With --backward each cell's forward and backward are planned.

No PyTorch here: it would bring NVRTC along, whose loading is part of what is timed. The CUDA context is made before,
since every program that uses the GPU has one.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from comparison import contenders, grid, library as c  # noqa: E402


def make_context():
    """Seconds that the driver and the primary context of device 0 took; None without a driver."""
    begin = time.perf_counter()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    context = ctypes.c_void_p()
    if cuda.cuInit(0) != 0 or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) != 0:
        return None
    return time.perf_counter() - begin


def empty_tensors(cell, device):
    """Shapes and strides of a cell, for the forward and for the backward: planning reads no memory."""
    bshd = (cell.s * cell.heads * cell.d, cell.d, cell.heads * cell.d, 1)
    view = c.tensor(None, "bf16", (cell.batch, cell.heads, cell.s, cell.d), bshd, device)
    lse = c.tensor(None, "f32", (cell.batch, cell.heads, cell.s), None, device)
    names = ("q", "k", "v", "o", "d_o", "dq", "dk", "dv")
    return c.attention_tensors(view, view, view, view, lse), c.backward_tensors(
        dict.fromkeys(names, view) | {"lse": lse}
    )


def main(path, device, names):
    backward = "--backward" in names
    context_seconds = make_context() if device == "cuda" else None
    begin = time.perf_counter()
    library = c.Library(path)
    load_seconds = time.perf_counter() - begin
    for name in names[backward:]:
        for cell in grid.parse_cell(name):
            tensors = empty_tensors(cell, device)[: 1 + backward]
            begin = time.perf_counter()
            for of_pass in tensors:
                plan = library.plan(of_pass, c.AttentionOptions(mask_mod=contenders.MASKS[cell.causal]))
            seconds = time.perf_counter() - begin
            print(
                json.dumps(
                    {
                        "cell": cell.name,
                        "seconds": seconds,
                        "context_seconds": context_seconds,
                        "load_seconds": load_seconds,
                        "backend": plan.backend(),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
