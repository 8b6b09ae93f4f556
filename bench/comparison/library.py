"""heddle/c.h through ctypes, its structs read from the header. Needs nothing but that and the shared library; tensors are
given by address, shape and strides."""

import ctypes
import os
import re
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


class Sized(ctypes.Structure):
    """A struct that tells its size; everything else starts at zero, the default."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


HEADER = Path(__file__).resolve().parents[2] / "include" / "heddle" / "c.h"
STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\} \1;", re.DOTALL)
FIELD = re.compile(r"(?:const )?(\w+)(\*?) (\w+)(\[HEDDLE_MAX_RANK\])?")
NUMBERS = {"int32_t": c_int32, "int64_t": c_int64, "uint64_t": c_uint64, "double": c_double}


def field_of(declaration, structs):
    """The name and the type of a field: "const heddle_tensor* sinks". Pointers to what c.h does not show are addresses."""
    match = FIELD.fullmatch(declaration)
    if match is None:  # a function
        return re.search(r"\(\*(\w+)\)", declaration).group(1), c_void_p
    target, star, name, extent = match.groups()
    if star and target == "char":
        return name, c_char_p
    kind = structs.get(target) or NUMBERS.get(target)
    if star:
        return name, c_void_p if kind is None else POINTER(kind)
    if kind is None:  # the type of a function
        return name, c_void_p
    return name, kind * MAX_RANK if extent else kind


def structs_of(header):
    """The structs of c.h, by their names there."""
    text = re.sub(r"//[^\n]*", "", header.read_text(encoding="utf-8"))
    structs = {}
    for name, body in STRUCT.findall(text):
        fields = [field_of(" ".join(one.split()), structs) for one in body.split(";") if one.strip()]
        base = Sized if fields[0][0] == "struct_size" else ctypes.Structure
        structs[name] = type(name, (base,), {"_fields_": fields})
    return structs


STRUCTS = structs_of(HEADER)
Tensor, Param, Capture, Bindings, AttentionOptions, AttentionTensors, Gradient, BackwardTensors, RunOptions, Sequence, \
    BlockMaskOptions = (STRUCTS[f"heddle_{name}"] for name in (
        "tensor", "param", "capture", "bindings", "attention_options", "attention_tensors", "gradient",
        "backward_tensors", "run_options", "sequence", "block_mask_options"))


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
