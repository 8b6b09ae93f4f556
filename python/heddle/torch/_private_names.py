"""Names that torch promises to nobody. Where a version lacks one, calls go a slower way that needs no answer from it, or
the error names it."""

from __future__ import annotations

import contextlib
import importlib
import sys
from operator import attrgetter
from typing import Any

import torch
import torch.nn.attention.flex_attention
from torch.autograd import forward_ad

ACCEPTED = "torch 2.11 to 2.15 are accepted"


def found(path: str) -> Any:
    """torch's object of a dotted name behind "torch.", None if this version lacks it."""
    try:
        return attrgetter(path)(torch)
    except AttributeError:
        return None


def first_of(*paths: str) -> Any:
    """The first that is found. Raises ImportError that names all: a call cannot tell who watches it."""
    for path in paths:
        one = found(path)
        if one is not None:
            return one
    raise ImportError(f"torch {torch.__version__} has none of {', '.join(f'torch.{path}' for path in paths)}, one of which "
                      f"heddle.torch needs; {ACCEPTED}")


# How many modes of __torch_dispatch__ are active; what is in the second's place says whether any is.
dispatch_modes: Any = first_of("_C._len_torch_dispatch_stack", "utils._python_dispatch.is_in_torch_dispatch_mode")
# A transform of torch.func that is active, or all of them; None if there are none.
transforms: Any = first_of("_C._functorch.peek_interpreter_stack", "_C._functorch.get_interpreter_stack")
# The hooks of all saved tensors, None if there are none. The argument: also where hooks are turned off.
saved_tensors_hooks: Any = found("_C._autograd._top_saved_tensors_default_hooks") or (lambda even_if_off: ())
# The graph that torch.jit.trace records into, None outside of it.
jit_trace: Any = found("_C._get_tracing_state") or (lambda: True if getattr(torch.jit, "is_tracing")() else None)
is_any_autocast: Any = found("_C._is_any_autocast_enabled") or (
    lambda: any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")))
are_tangents_seen: Any = found("_C._is_fwd_grad_enabled") or (lambda: True)


def has_tangents() -> bool:
    """Whether a level of forward-mode AD is entered, or may be."""
    return getattr(forward_ad, "_current_level", 0) >= 0


def lacks_storage(x: torch.Tensor) -> bool:
    try:
        x.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return True
    return False


# Whether a transform of torch.func wraps a tensor; whether torch's old vmap maps one.
is_wrapped: Any = found("_C._functorch.is_functorch_wrapped_tensor") or (lambda x: transforms() is not None)
is_mapped: Any = found("_C._functorch.is_legacy_batchedtensor") or lacks_storage

# torch's current stream of a GPU, as a number.
stream_of: Any = found("_C._cuda_getCurrentRawStream") or (lambda index: torch.cuda.current_stream(index).cuda_stream)
# A context in which subclasses do not see torch's functions; what a class has that never does.
without_subclasses: Any = found("_C.DisableTorchFunctionSubclass") or found("_C.DisableTorchFunction") or contextlib.nullcontext
sees_no_functions: Any = torch.nn.Parameter.__torch_function__
# A context in which torch's own code runs, whatever modes and subclasses there are.
without_dispatch: Any = first_of("utils._mode_utils.no_dispatch", "_C._DisableTorchDispatch")
# Switches gradients; modes of __torch_function__ see it called.
set_grad_enabled: Any = found("_C._set_grad_enabled") or torch.set_grad_enabled
# Inductor's code makes its tensors so: 0.6 us, where torch.empty with a dtype and a device takes 1.8. Or None. On the current GPU:
strided_on_cpu: Any = found("_C._dynamo.guards._empty_strided_cpu")
strided_on_gpu: Any = found("_C._dynamo.guards._empty_strided_cuda")

# torch's score_mod that changes nothing; what a BlockMask that was sliced has as its mask_mod.
identity: Any = found("nn.attention.flex_attention._identity") or (lambda score, b, h, q_idx, kv_idx: score)
sliced_mask_mod: Any = found("nn.attention.flex_attention._sliced_mask_mod_error") or object()
# Makes torch.jit.script take a function for one of torch's operators.
register_builtin: Any = found("jit._builtins._register_builtin") or (lambda function, operator: None)


def forget_signature(function: Any) -> None:
    """For Dynamo, which keeps the arguments that a function's code has: the code is another one now."""
    kept = getattr(sys.modules.get("torch._dynamo.variables.functions"), "_spec_cache", None)
    if kept is not None:
        kept.pop(function, None)


# Names without which no mod is traced. They are imported where they are used.
NEEDED = (
    ("torch._C", "_len_torch_function_stack"), ("torch.overrides", "_push_mode"), ("torch.overrides", "_pop_mode"),
    ("torch._functorch.pyfunctorch", "temporarily_clear_interpreter_stack"), ("torch._ops", "HigherOrderOperator"),
    ("torch.utils._python_dispatch", "TorchDispatchMode"), ("torch.utils._python_dispatch", "_disable_current_modes"),
    ("torch.utils._pytree", "tree_leaves"), ("torch.utils._pytree", "tree_map"))


def needed(module: str, name: str) -> Any:
    """What a module of torch's has by this name. Raises ImportError that names it."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise ImportError(f"torch {torch.__version__} has no {module}.{name}, which heddle.torch needs; {ACCEPTED}") from None


for one in NEEDED:
    needed(*one)
