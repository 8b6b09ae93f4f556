"""The modes under which a mod runs: each torch function and each aten operation that it calls builds an expression."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch._C import _len_torch_function_stack
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ... import _core
from . import aten, aten_inverses, aten_orders, aten_tensors, narrow_integers, own_operators, values  # noqa: F401  they fill OPERATIONS
from .._private_names import is_wrapped as is_wrapped_tensor, set_grad_enabled, transforms
from .contents import READERS, computed, content_of, depends_on_content, remember
from .indexing import getitem, is_gather
from ..._tracing.noted_errors import add_note
from ..._tracing.numbers import Number
from ..._tracing.trace import check_arguments
from .operations import OPERATIONS, cast_to
from .recording import MOST_LITERALS, CaptureValue, Memory, Recording, Traced
from .values import Unsupported, Value

SYMBOLS = torch.SymInt, torch.SymFloat
NUMBERS = Number, *SYMBOLS  # become params where they meet a tensor
OWN_FOLDERS = (torch.__path__[0] + os.sep, os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep)
SIZE_GETTERS = frozenset((
    torch.Tensor.shape.__get__, torch.Tensor.nbytes.__get__,  # type: ignore[attr-defined]  # descriptors
    torch.Tensor.size, torch.Tensor.numel, torch.Tensor.__len__, torch.Tensor.nelement, torch.numel))
# Their results are parts of the key under which an expression is kept. Nothing else that Python's code gets of a user's
# tensor is one.
WATCHED_GETTERS = frozenset((
    *(getattr(torch.Tensor, name).__get__ for name in ("dtype", "device", "ndim", "is_cuda", "is_cpu", "itemsize")),
    torch.Tensor.dim, torch.Tensor.ndimension, torch.Tensor.element_size, torch.Tensor.get_device,
    torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.is_signed, torch.is_floating_point,
    torch.is_complex, torch.is_signed))
# Functions of symbols alone: torch calls them in a symbol's arithmetic.
OF_SYMBOLS = frozenset((torch.sym_float, torch.sym_int, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sum))
DETACHING = (torch.Tensor.detach_, torch.detach_)
CLAMPING = (torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip)
MAKERS = (torch.tensor, torch.as_tensor, torch.scalar_tensor)


def trace_with(recording: Recording, mod: Any) -> Any:
    """The expression that a mod returns. Raises NotImplementedError for an operation that has none."""
    leaves = [
        Traced(Value.scalar(_core.leaf(name)), torch.float32 if name == "score" else torch.int32, recording.device, ())
        for name in recording.kind.arguments
    ]
    ambient: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if torch.compiler.is_exporting():
        ambient = without_modes()
    elif transforms() is not None:
        ambient = temporarily_clear_interpreter_stack()  # no transform of torch.func wraps the symbolic tensors
    with ambient, Functions(recording), Operations(recording):
        try:
            return checked(recording, called(recording, mod, leaves))
        except Unsupported as error:
            raise NotImplementedError(f"{error}{users_line()}") from None
        except NoExpression as error:
            raise NotImplementedError(str(error)) from None


def called(recording: Recording, mod: Any, leaves: list[Traced]) -> Any:
    try:
        return mod(*leaves)
    except (Unsupported, NoExpression):
        raise
    except Exception as error:
        arguments = recording.kind.arguments
        if isinstance(error, TypeError):
            check_arguments(mod, arguments)
        add_note(error, mod, arguments, "torch's functions of them, and torch.where in place of branches,")
        raise


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Without the modes of torch.export, AOT and fake tensors, which do not know the symbolic tensors of a trace."""
    with _disable_current_modes():
        functions = [_pop_mode() for _ in range(_len_torch_function_stack())]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for mode in reversed(functions):
                _push_mode(mode)  # type: ignore[no-untyped-call]


def checked(recording: Recording, result: Any) -> Any:
    if isinstance(result, NUMBERS):
        result = recording.operand(result)
    elif isinstance(result, torch.Tensor):
        result = recording.value_of(result)
    elif isinstance(result, (bool, int, float)):
        result = Value.scalar(values.literal(result))
    else:
        raise ValueError(f"a mod returned {type(result).__name__}; a tensor is accepted")  # as torch.vmap's
    if result.count != 1:
        raise TypeError(f"a mod returned a tensor of shape {list(result.shape)}; a scalar is accepted")
    expr, kind = result.expr, recording.kind.type
    if kind == "bool" and expr.type != "bool":
        returned = "floating-point numbers" if expr.type == "f32" else "integers"
        raise TypeError(f"a mask_mod returned {returned}; bool is accepted")
    return values.as_f32(expr) if kind == "f32" else expr


def users_line() -> str:
    """Where the mod is: the innermost frame that is neither torch's nor heddle's."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OWN_FOLDERS):
        frame = frame.f_back
    if frame is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f" ({frame.f_code.co_filename}:{frame.f_lineno}{': ' + line if line else ''})"


def is_wrapped(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(is_wrapped(one) for one in x)
    return isinstance(x, torch.Tensor) and is_wrapped_tensor(x)


def without_gradients(recording: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The mod's own code sees whether gradients are on; the functions that it calls record none."""
    if not torch.is_grad_enabled() or func is set_grad_enabled:
        return func(*args, **kwargs)
    set_grad_enabled(False)
    recording.is_silent = True
    try:
        return func(*args, **kwargs)
    finally:
        recording.is_silent = False
        set_grad_enabled(True)


def is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    is_operator = name.startswith("__i") and name not in ("__invert__", "__int__", "__index__")
    return is_operator or name.endswith("_") and not name.endswith("__")


def is_of_tensors(result: Any) -> bool:
    if isinstance(result, (list, tuple)):
        return bool(result) and all(isinstance(one, torch.Tensor) for one in result)
    return isinstance(result, torch.Tensor)


class NoExpression(NotImplementedError):
    """An aten operation has no expression. `is_random`: it draws numbers."""

    def __init__(self, text: str, func: Any = None) -> None:
        super().__init__(text)
        self.is_random = func is not None and torch.Tag.nondeterministic_seeded in func.tags


class Functions(TorchFunctionMode):
    """Sees torch's functions as the mod calls them: indexing, and numbers among the operands."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recording = self.recording
        if func is set_grad_enabled:
            recording.turns_off = not args[0]
        if not recording.has_gradients():
            return self.called_without_gradients(func, args, kwargs)
        if recording.is_in_function() and not recording.warns:
            self.warn_of_backward(args, kwargs)
        return self.called(func, args, kwargs)

    def warn_of_backward(self, args: Any, kwargs: Any) -> None:
        """Says once a trace that an autograd.Function's own backward is not called, if its operands have gradients."""
        recording = self.recording
        if any(recording.is_learned(one) if isinstance(one, Traced) else one.requires_grad
               for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.is_floating_point()):
            recording.warns = True
            warnings.warn("a mod calls an autograd.Function: heddle's gradients are those of its forward, and its backward is not "
                          "called", UserWarning, stacklevel=2)

    def called_without_gradients(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the mod calls under a torch.no_grad() of its own: nothing of it has a gradient."""
        recording = self.recording
        recording.is_kept = False  # what it depends on, requires_grad among it, is in no key
        written = args[0] if args and isinstance(args[0], Traced) and is_in_place(func) else None
        args, kwargs = tree_map(recording.constant_for_gradients, (args, kwargs))
        if written is not None and args[0] is not written:
            recording.refuse_gradients()
            args = (written, *args[1:])
        result = self.called(func, args, kwargs)
        for one in tree_leaves(result):
            if isinstance(one, Traced):
                one._is_detached = True
        return result

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        recording = self.recording
        if func is torch.Tensor.__getitem__:
            memory = None if is_gather(args[1]) else Memory.of(args[0])
            try:
                value = getitem(recording, args[0], args[1])
            except Unsupported as error:
                return self.of_contents(NoExpression(f"{error}{users_line()}"), func, args, kwargs)
            found = recording.wrapped(value, args[0].dtype, memory=memory)
            remember(found, func, args, kwargs)
            return found
        if func is torch.Tensor.__setitem__:
            raise NotImplementedError(f"a mod writes into a tensor{users_line()}; write it with torch.where")
        if func in DETACHING:  # torch dispatches neither
            return self.detached_in_place(args[0])
        if func in MAKERS and args and isinstance(args[0], Number):
            return self.made(args[0], **kwargs)
        if func in READERS and isinstance(args[0], Traced):
            return self.read(func, args[0], *args[1:], **kwargs)
        if func in OF_SYMBOLS and not any(isinstance(one, (torch.Tensor, Number)) for one in args):
            return func(*args, **kwargs)
        if any(isinstance(one, NUMBERS) for one in args) or any(isinstance(one, NUMBERS) for one in kwargs.values()):
            args, kwargs = tree_map(self.bound if func in CLAMPING else self.number, (args, kwargs))
        if any(is_wrapped(one) for one in args) or any(is_wrapped(one) for one in kwargs.values()):
            args, kwargs = tree_map(self.symbolic, (args, kwargs))
        try:
            result = without_gradients(recording, func, args, kwargs)
        except NoExpression as error:
            result = self.of_contents(error, func, args, kwargs)
        if not is_of_tensors(result) and func not in WATCHED_GETTERS:
            self.becomes_pythons(func, tree_leaves((args, kwargs)))
        return result

    def detached_in_place(self, x: Any) -> Any:
        if not isinstance(x, Traced):
            raise NotImplementedError(f"a mod writes into a tensor (detach_{users_line()}); write detach()")
        x._value = self.recording.detached(x)._value
        return x

    def of_contents(self, error: NoExpression, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function without expression gives of tensors alone that no score and no index reaches: torch computes
        it, autograd records it as in the caller's code, and the trace is not kept."""
        if error.is_random or not depends_on_content((args, kwargs)):
            raise error
        try:
            with _disable_current_modes():
                result = computed(func, args, kwargs)
        except (IndexError, RuntimeError, TypeError, ValueError) as failed:
            raise error from failed
        self.recording.is_kept = False
        return result

    def becomes_pythons(self, func: Any, operands: list[Any]) -> None:
        """Python's code gets something of tensors that is no tensor."""
        for one in operands:
            if isinstance(one, Traced):
                if isinstance(one._value, CaptureValue):
                    self.recording.shape_matters(one._value.tensor)
            elif isinstance(one, torch.Tensor):
                if func in SIZE_GETTERS:
                    self.recording.shape_matters(one)
                else:
                    self.recording.is_kept = False

    def read(self, func: Any, tensor: Traced, *others: Any, **named: Any) -> Any:
        with _disable_current_modes():
            content = content_of(tensor)
            if content is not None:
                self.recording.is_kept = False
                return func(content, *others, **named)
        refuse_value(tensor)

    def made(self, number: Number, dtype: torch.dtype | None = None, **options: Any) -> Any:
        """torch.tensor(number): the tensor of a param."""
        value = self.recording.param(number)
        kind = torch.get_default_dtype() if value.kind == "f32" else None
        made = self.recording.wrapped(value, kind, wide=True)
        remember(made, torch.tensor, (number,), {})
        return made if dtype is None or dtype == made.dtype else made.to(dtype)

    def symbolic(self, x: Any) -> Any:
        """A tensor of a transform of torch.func: an operation on it would not say what it was."""
        return self.recording.wrapped(self.recording.value_of(x), x.dtype) if is_wrapped(x) else x

    def bound(self, x: Any) -> Any:
        """A number as a tensor: torch's clamp takes either two of them or none."""
        is_plain = isinstance(x, (int, float)) and not isinstance(x, NUMBERS)
        return self.recording.wrapped(Value.scalar(values.literal(x)), wide=True) if is_plain else self.number(x)

    def number(self, x: Any) -> Any:
        if type(x) in SYMBOLS:
            return self.recording.wrapped(self.recording.symbol(x), wide=True)
        if not isinstance(x, Number):
            return x
        made = self.recording.wrapped(self.recording.param(x), wide=True)  # torch's C++ may ask for its value
        made._is_number = True
        remember(made, torch.tensor, (x,), {})
        return made


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the aten operations that are left."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = self.dispatched(func, args, kwargs or {})
        if not (args and made is args[0]):  # else it is written in place
            remember(made, func, args, kwargs or {})
        return made

    def dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        recording = self.recording
        space, _, name = func._schema.name.partition("::")
        if name in ("_local_scalar_dense", "item"):
            return self.python_value(func, args[0])
        if func is torch.ops.prim.device.default:  # of a fake tensor, which C++ asks for it
            return getattr(args[0], "fake_device", recording.device)
        if name in ("lift_fresh", "lift_fresh_copy") and not isinstance(args[0], Traced):
            return recording.wrapped(recording.constant(args[0]), args[0].dtype)
        if name in ("detach", "detach_copy"):
            return recording.detached(args[0])
        operation = OPERATIONS.get(name)
        in_place = operation is None and name.endswith("_") and not name.startswith("_")
        if in_place:
            operation = OPERATIONS.get(name[:-1])
        if operation is None or space not in ("aten", "approx", "prims", "heddle"):
            return self.decomposed(func, args, kwargs)
        turns_view = in_place and torch.Tag.inplace_view in func.tags
        if in_place and not (turns_view and isinstance(args[0], Traced)) and Memory.of(args[0]).is_users:
            raise NotImplementedError(f"a mod writes into a tensor ({name}{users_line()}); compute a new one")
        unrolls = name in aten_tensors.REDUCTIONS or name in aten_orders.ORDERS
        if unrolls and args[0].numel() > MOST_LITERALS and depends_on_content((args, kwargs)):
            raise NoExpression(f"{name} of {args[0].numel()} captured elements is unrolled for no score", func)
        try:
            operands, named = tree_map(recording.operand, (args, kwargs))
            narrow = narrow_integers.type_of(name[:-1] if in_place else name, args)
            if narrow is not None:
                operands = [narrow_integers.narrowed(one, narrow) for one in operands]
            value = operation(*operands, **named)
            if narrow is not None:
                value = narrow_integers.narrowed(value, narrow)
        except Unsupported as error:
            raise NoExpression(f"{error}{users_line()}", func) from None
        except TypeError as error:
            if error.__traceback__ and error.__traceback__.tb_next:  # not of the call itself
                raise
            raise NoExpression(f"{name} with these arguments has no expression in heddle{users_line()}", func) from error
        if turns_view:
            return args[0].become_view(value, func, args, kwargs)
        if in_place:
            written = args[0]
            written.write(values.expanded(cast_to(value, written._value.kind), written._value.shape))
            return written
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        wide = name in aten_tensors.WIDE or any(one.dtype == torch.int64 for one in tensors)
        is_view = any(made.alias_info is not None for made in func._schema.returns)
        memory = Memory.of(args[0]) if is_view else None
        dtype = args[0].dtype if is_view else kwargs.get("dtype", narrow)
        return recording.wrapped(value, dtype, wide, memory)

    def python_value(self, func: Any, tensor: torch.Tensor) -> Any:
        content = content_of(tensor) if isinstance(tensor, Traced) else tensor
        if content is None:
            refuse_value(tensor)
        self.recording.is_kept = False
        return func(content)

    def decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        from torch._decomp import decomposition_table  # slow to import

        # Inside of another decomposition torch hands on what it would else have taken apart: func.decompose does so.
        decomposition = decomposition_table.get(func, func.decompose)
        args, kwargs = tree_map(self.symbolic, (args, kwargs))
        with self:
            result = decomposition(*args, **kwargs)
        if result is NotImplemented:
            name = func._schema.name.removeprefix("aten::")
            raise NoExpression(f"{name} has no expression in heddle{users_line()}", func)
        return result

    def symbolic(self, x: Any) -> Any:
        """A fake or functional tensor has methods of its own, which decompositions call and which want torch's modes."""
        if not isinstance(x, torch.Tensor) or type(x) in (Traced, torch.Tensor, torch.nn.Parameter):
            return x
        return self.recording.wrapped(self.recording.value_of(x), x.dtype)


def refuse_value(tensor: Any) -> NoReturn:
    value = tensor._value
    what = value.expr if value.count == 1 else f"a tensor of shape {list(value.shape)}"
    is_index = not tensor.dtype.is_floating_point and tensor.dtype != torch.bool
    tables = "; index torch.as_tensor(table) instead of a list, a range or an array of NumPy" if is_index else ""
    raise TypeError(
        f"a mod's Python code needs the value of {what}, which differs from score to score"
        f"{users_line()}: write torch.where(condition, x, y), and & | ~ between conditions instead of if, and, or, not "
        f"and chained comparisons{tables}")
