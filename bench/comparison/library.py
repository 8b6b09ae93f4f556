"""heddle/c.h through ctypes. Needs nothing but the shared library; tensors are given by address, shape and strides."""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

C_VERSION = 5
MAX_RANK = 8
DTYPES = {
    name: number
    for number, name in enumerate(
        ("f64", "f32", "f16", "bf16", "e4m3", "e5m2", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")
    )
}
DEVICES = {"cpu": 0, "cuda": 1, "rocm": 2}
STATUSES = ("ok", "invalid_argument", "unsupported", "out_of_memory", "io", "device", "compile", "internal")
BACKENDS = ("automatic", "cpu", "reference", "cuda")
PARAM_F32, PARAM_I32, PARAM_BOOL = range(3)


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device_kind", c_int32),
        ("device_index", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * MAX_RANK),
        ("strides", c_int64 * MAX_RANK),
    ]


class Param(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("type", c_int32), ("integer", c_int32), ("real", c_double)]


class Capture(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("tensor", POINTER(Tensor))]


class Sized(ctypes.Structure):
    """A struct that tells its size; everything else starts at zero, the default."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Bindings(Sized):
    _fields_ = [
        ("struct_size", c_uint64),
        ("params", POINTER(Param)),
        ("param_count", c_int64),
        ("captures", POINTER(Capture)),
        ("capture_count", c_int64),
    ]


class AttentionOptions(Sized):
    _fields_ = [
        ("struct_size", c_uint64),
        ("score_mod", c_char_p),
        ("mask_mod", c_char_p),
        ("weight_mod", c_char_p),
        ("bindings", POINTER(Bindings)),
        ("scale", POINTER(c_double)),
        *(
            (name, POINTER(Tensor))
            for name in (
                "sinks",
                "q_lengths",
                "kv_lengths",
                "cu_seqlens_q",
                "cu_seqlens_kv",
                "q_start",
                "q_descale",
                "k_descale",
                "v_descale",
            )
        ),
        ("normalizer", c_int32),
        ("backend", c_int32),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("stream", c_void_p),
        ("progress", c_void_p),
        ("progress_context", c_void_p),
        ("block_mask", c_void_p),
        ("page_table", POINTER(Tensor)),
        ("max_q_len", c_int64),
        ("max_kv_len", c_int64),
        ("kv_start", POINTER(Tensor)),
        ("clamp_reads", c_int32),
        ("reserved_2", c_int32),
        ("deterministic", c_int32),
        ("tuning", c_int32),
    ]


class AttentionTensors(Sized):
    _fields_ = [
        ("struct_size", c_uint64),
        *((name, POINTER(Tensor)) for name in ("q", "k", "v", "o", "lse", "max_scores", "lse_rest")),
    ]


class Gradient(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("tensor", POINTER(Tensor))]


class BackwardTensors(Sized):
    _fields_ = [
        ("struct_size", c_uint64),
        *((name, POINTER(Tensor)) for name in ("q", "k", "v", "o", "lse", "d_o", "d_lse", "dq", "dk", "dv", "d_sinks")),
        ("d_captures", POINTER(Gradient)),
        ("d_capture_count", c_int64),
        ("d_params", POINTER(Gradient)),
        ("d_param_count", c_int64),
        ("lse_rest", POINTER(Tensor)),
    ]


class RunOptions(Sized):
    _fields_ = [
        ("struct_size", c_uint64),
        ("workspace", c_void_p),
        ("bindings", POINTER(Bindings)),
        ("stream", c_void_p),
    ]


class Sequence(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("q_begin", "q_len", "kv_begin", "kv_len", "q_start", "kv_start")]


class BlockMaskOptions(Sized):
    _fields_ = [
        ("struct_size", c_uint64),
        ("heads", c_int64),
        ("sequences", POINTER(Sequence)),
        ("sequence_count", c_int64),
        ("q_block", c_int64),
        ("kv_block", c_int64),
        ("mask_mod", c_char_p),
        ("bindings", POINTER(Bindings)),
        *((name, POINTER(Tensor)) for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")),
        ("threads", c_int32),
        ("f64_inputs", c_int32),
        ("sequence_size", c_int64),
        ("clamp_reads", c_int32),
        ("reserved", c_int32),
    ]


class HeddleError(RuntimeError):
    """A call failed: `status` is its name in c.h, the message the library's sentence."""

    def __init__(self, status, sentence):
        super().__init__(f"{status}: {sentence}")
        self.status = status


def tensor(address, dtype, shape, strides=None, device="cpu", index=0):
    """A view; row-major unless strides (in elements) are given."""
    if strides is None:
        strides, step = [], 1
        for extent in reversed(shape):
            strides.insert(0, step)
            step *= extent
    return Tensor(
        address,
        DTYPES[dtype],
        DEVICES[device],
        index,
        len(shape),
        (c_int64 * MAX_RANK)(*shape),
        (c_int64 * MAX_RANK)(*strides),
    )


def attention_tensors(q, k, v, o, lse=None):
    views = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    return AttentionTensors(**{name: ctypes.pointer(view) for name, view in views.items() if view is not None})


def backward_tensors(views, captures=None):
    """`views`: by field of BackwardTensors; None is absent. `captures`: where their gradients go, by name."""
    captures = captures or {}
    pointers = {name: ctypes.pointer(view) for name, view in captures.items()}
    gradients = (Gradient * max(1, len(captures)))(*(Gradient(name.encode(), at) for name, at in pointers.items()))
    return BackwardTensors(
        d_captures=gradients,
        d_capture_count=len(captures),
        **{name: ctypes.pointer(view) for name, view in views.items() if view is not None},
    )


def find_library(given=None):
    """The file given, that of $HEDDLE_LIBRARY, or the one that this checkout built last."""
    if given or os.environ.get("HEDDLE_LIBRARY"):
        return Path(given or os.environ["HEDDLE_LIBRARY"])
    root = Path(__file__).resolve().parents[2]
    built = sorted(root.glob("build/*/lib/libheddle_c.so"), key=lambda path: path.stat().st_mtime)
    if not built:
        raise FileNotFoundError(
            f"no build/*/lib/libheddle_c.so under {root}: build the target heddle_c, or give --library FILE"
        )
    return built[-1]


class Library:
    """The functions of c.h with a status turned into HeddleError."""

    def __init__(self, path):
        self.path = Path(path)
        self.c = ctypes.CDLL(str(self.path.resolve()))
        tensors, options, plan, text = POINTER(AttentionTensors), POINTER(AttentionOptions), c_void_p, POINTER(c_char_p)
        backward = POINTER(BackwardTensors)
        for name, arguments in {
            "devices_json": [text],
            "attention_into": [tensors, options],
            "plan_create": [tensors, options, POINTER(plan)],
            "plan_run": [plan, tensors, POINTER(RunOptions)],
            "plan_create_backward": [backward, options, POINTER(plan)],
            "plan_run_backward": [plan, backward, POINTER(RunOptions)],
            "check_backward": [backward, options, POINTER(c_int32), text],
            "plan_workspace_bytes": [plan, POINTER(c_int64)],
            "plan_backend": [plan, POINTER(c_int32)],
            "plan_explain": [plan, text],
            "plan_explain_json": [plan, text],
            "check_attention": [tensors, options, POINTER(c_int32), text],
            "block_mask_create": [POINTER(BlockMaskOptions), POINTER(c_void_p)],
            "block_mask_text": [c_void_p, c_int64, c_int64, text],
        }.items():
            function = getattr(self.c, f"heddle_{name}")
            function.argtypes, function.restype = arguments, c_int32
        for name in ("plan_destroy", "block_mask_destroy"):
            getattr(self.c, f"heddle_{name}").argtypes, getattr(self.c, f"heddle_{name}").restype = [plan], None
        for name in ("version", "last_error"):
            getattr(self.c, f"heddle_{name}").restype = c_char_p
        self.c.heddle_c_version.restype = c_int32
        if self.c_version() < C_VERSION:
            raise HeddleError("unsupported", f"{path} has version {self.c_version()} of c.h; {C_VERSION} is needed")

    def c_version(self):
        return self.c.heddle_c_version()

    def version(self):
        return self.c.heddle_version().decode()

    def check(self, status):
        if status != 0:
            name = STATUSES[status] if status < len(STATUSES) else str(status)
            raise HeddleError(name, self.c.heddle_last_error().decode(errors="replace"))

    def devices_json(self):
        return self._text(self.c.heddle_devices_json)

    def attention_into(self, tensors, options=None):
        self.check(self.c.heddle_attention_into(byref(tensors), options and byref(options)))

    def check_attention(self, tensors, options=None):
        """(whether it passed, the table of errors)"""
        return self._checked(self.c.heddle_check_attention, tensors, options)

    def check_backward(self, tensors, options=None):
        return self._checked(self.c.heddle_check_backward, tensors, options)

    def _checked(self, function, tensors, options):
        passed, report = c_int32(), c_char_p()
        self.check(function(byref(tensors), options and byref(options), byref(passed), byref(report)))
        return passed.value == 1, report.value.decode()

    def plan(self, tensors, options=None):
        """A plan of the pass that `tensors` are of."""
        return Plan(self, tensors, options)

    def block_mask(self, options):
        return BlockMask(self, options)

    def _text(self, function, *arguments):
        text = c_char_p()
        self.check(function(*arguments, byref(text)))
        return text.value.decode()


class BlockMask:
    def __init__(self, library, options):
        self.library, self.handle = library, c_void_p()
        library.check(library.c.heddle_block_mask_create(byref(options), byref(self.handle)))

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.c.heddle_block_mask_destroy(self.handle)

    def text(self, sequence=0, head=0):
        """A line a row of blocks: '#' full, '+' partial, '.' empty."""
        return self.library._text(self.library.c.heddle_block_mask_text, self.handle, sequence, head)


class Plan:
    def __init__(self, library, tensors, options=None):
        self.library, self.handle = library, c_void_p()
        backward = isinstance(tensors, BackwardTensors)
        create = library.c.heddle_plan_create_backward if backward else library.c.heddle_plan_create
        self.c_run = library.c.heddle_plan_run_backward if backward else library.c.heddle_plan_run
        library.check(create(byref(tensors), options and byref(options), byref(self.handle)))

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.c.heddle_plan_destroy(self.handle)

    def run(self, tensors, options=None):
        self.library.check(self.c_run(self.handle, byref(tensors), options and byref(options)))

    def workspace_bytes(self):
        count = c_int64()
        self.library.check(self.library.c.heddle_plan_workspace_bytes(self.handle, byref(count)))
        return count.value

    def backend(self):
        number = c_int32()
        self.library.check(self.library.c.heddle_plan_backend(self.handle, byref(number)))
        return BACKENDS[number.value]

    def explain(self):
        return self.library._text(self.library.c.heddle_plan_explain, self.handle)

    def explain_json(self):
        return self.library._text(self.library.c.heddle_plan_explain_json, self.handle)
