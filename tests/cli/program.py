"""What the tests of the program share: running it, and writing and reading tensor files with the standard library."""

import json
import os
import random
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

# Nothing that these tests measure or compile is kept for anyone else.
os.environ.setdefault("HEDDLE_CACHE_DIR", (_cache := tempfile.TemporaryDirectory(prefix="heddle_cli_")).name)

ROOT = Path(__file__).resolve().parents[2]
HEDDLE = os.environ["HEDDLE"]
INPUT = ROOT / "examples" / "data" / "minilm.safetensors"

FORMATS = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "U8": "B"}


def heddle(*arguments, **options):
    """Runs the program; returns its exit code, stdout and stderr."""
    command = [HEDDLE, *(str(argument) for argument in arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, text=True, check=False, **streams)


def write_safetensors(path, tensors):
    """tensors: {name: (dtype, shape, values)}; values may be the bytes."""
    header, blob = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        raw = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + blob)


def values_of(dtype, raw):
    """The elements as Python numbers."""
    if dtype == "BF16":
        raw, dtype = b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2)), "F32"
    return struct.unpack(f"<{len(raw) // struct.calcsize(FORMATS[dtype])}{FORMATS[dtype]}", raw)


def read_safetensors(path):
    """{name: (dtype, shape, values)}, and the metadata."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = (entry["dtype"], entry["shape"], values_of(entry["dtype"], data[begin:end]))
    return tensors, metadata


def write_npy(path, dtype, shape, values):
    kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}[dtype]
    header = repr({"descr": kind, "fortran_order": False, "shape": tuple(shape)}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    raw = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
    Path(path).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + raw)


def noise(*shape, seed=1):
    """Reproducible values in [-1, 1], as many as the shape holds."""
    count = 1
    for extent in shape:
        count *= extent
    generator = random.Random(seed)
    return [generator.uniform(-1, 1) for _ in range(count)]


def small_inputs(batch=1, heads=2, kv_heads=1, queries=5, keys=7, dim=4, value_dim=3):
    """q, k, v as {name: (dtype, shape, values)}."""
    shapes = {
        "q": [batch, heads, queries, dim],
        "k": [batch, kv_heads, keys, dim],
        "v": [batch, kv_heads, keys, value_dim],
    }
    return {name: ("F32", shape, noise(*shape, seed=i)) for i, (name, shape) in enumerate(shapes.items())}


class ProgramTest(unittest.TestCase):
    """A test with an empty folder of its own, in which the program finds `examples` as from the checkout's root."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "examples").symlink_to(ROOT / "examples")

    def run_well(self, *arguments, **options):
        result = heddle(*arguments, **options)
        self.assertEqual(result.returncode, 0, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result.stdout

    def run_json(self, *arguments, **options):
        return json.loads(self.run_well(*arguments, "--json", **options))

    def assert_exit_code(self, code, *arguments):
        """The program ends with `code`; returns its stdout."""
        result = heddle(*arguments)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result.stdout

    def assert_fails(self, code, sentence, *arguments, **options):
        """The program ends with `code` and says `sentence` on stderr, and nothing on stdout."""
        result = heddle(*arguments, **options)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        self.assertIn(sentence, result.stderr)
        self.assertEqual(result.stdout, "")
        return result.stderr
