"""Attributes of objects, classes and modules, found as Python finds them but without running anybody's code."""

from __future__ import annotations

import types
from typing import Any

from .loaded import loaded
from .steps import Steps


class NotKept(Exception):
    """The mod reaches something that is neither watched nor constant; the text says what."""


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks",
                "_global_backward_pre_hooks")
GENERIC_LOOKUPS = (object.__getattribute__, types.SimpleNamespace.__getattribute__)
MISSING = object()


def of_class(kind: type, name: str) -> Any:
    """A class's attribute as it stands there, not bound to anything. None if it has none."""
    for one in kind.__mro__:
        if name in one.__dict__:
            return one.__dict__[name]
    return None


def is_torch_module(value: Any) -> bool:
    """Whether a value is a torch.nn.Module. Imports nothing."""
    torch = loaded("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def check_call_of_module(steps: Steps, module: Any, at: int) -> None:
    """Raises NotKept if a call of a torch.nn.Module does more than its class's `forward`."""
    torch = loaded("torch")
    kind, own = type(module), steps.to("get", at, "__dict__")
    if any(getattr(module, hooks, None) for hooks in HOOKS):
        raise NotKept("a module with hooks")
    for name in ("forward", "_compiled_call_impl"):
        if name in module.__dict__:
            raise NotKept(f"a module with a {name} of its own")
        steps.check("no_item", own, name)
    for hooks in HOOKS:
        steps.check("size", steps.to("item", own, hooks), 0)
    for hooks in GLOBAL_HOOKS:
        registered = getattr(torch.nn.modules.module, hooks)
        if registered:
            raise NotKept("hooks of all modules")
        steps.check("size", steps.to("constant", at, registered), 0)
    if of_class(kind, "__call__") is not torch.nn.Module.__call__:
        raise NotKept("a module with a __call__ of its own")
    steps.check("is", steps.to("of_class", at, "__call__"), torch.nn.Module.__call__)


def check_lookups(steps: Steps, owner: Any, at: int) -> None:
    """Raises NotKept if the attributes of an object are computed."""
    kind = type(owner)
    steps.check("type", at, kind)
    lookup, fallback = of_class(kind, "__getattribute__"), of_class(kind, "__getattr__")
    if not any(lookup is one for one in GENERIC_LOOKUPS):
        raise NotKept(f"{kind.__name__}.__getattribute__")
    if is_torch_module(owner):
        if fallback is not loaded("torch").nn.Module.__getattr__:
            raise NotKept(f"{kind.__name__}.__getattr__")
    elif fallback is not None:
        raise NotKept(f"{kind.__name__}.__getattr__")
    steps.check("is", steps.to("of_class", at, "__getattribute__"), lookup)
    steps.check("is", steps.to("of_class", at, "__getattr__"), fallback)


def of_object(steps: Steps, owner: Any, name: str, at: int) -> tuple[Any, int, bool]:
    """An attribute of an object, its slot, and whether it is a method. Raises NotKept for one that is computed."""
    kind = type(owner)
    named, slot = of_class(kind, name), steps.to("of_class", at, name)
    descriptor = type(named)
    if descriptor is types.MemberDescriptorType:  # an attribute of __slots__
        steps.check("is", slot, named)
        value = getattr(owner, name, MISSING)
        if value is MISSING:
            raise NotKept(f"the attribute {name}, which is not set")
        return value, steps.to("get", at, name), False
    if hasattr(descriptor, "__set__") or hasattr(descriptor, "__delete__"):
        raise NotKept(f"the property {name}")
    if isinstance(of_class(kind, "__dict__"), (types.GetSetDescriptorType, types.MemberDescriptorType)):
        found = _of_dict(steps, owner, name, steps.to("get", at, "__dict__"), named)
        if found is not None:
            steps.check("is", slot, named)
            return *found, False
    if named is None:
        raise NotKept(f"the attribute {name}")
    if descriptor is types.FunctionType:
        return named, slot, True
    if hasattr(descriptor, "__get__"):
        raise NotKept(f"the attribute {name}, which {descriptor.__name__} computes")
    return named, slot, False


def _of_dict(steps: Steps, owner: Any, name: str, at: int, named: Any) -> tuple[Any, int] | None:
    """An attribute that an object has itself; a torch.nn.Module also has parameters, buffers and modules, if its class
    has no attribute of the name."""
    own = owner.__dict__
    if type(own) is not dict:
        raise NotKept(f"a __dict__ that is a {type(own).__name__}")
    if name in own:
        return own[name], steps.to("item", at, name)
    steps.check("no_item", at, name)
    if named is not None or not is_torch_module(owner):
        return None
    for held in ("_parameters", "_buffers", "_modules"):
        inside = steps.to("item", at, held)
        if name in own[held]:
            return own[held][name], steps.to("item", inside, name)
        steps.check("no_item", inside, name)
    return None


def of_plain_class(steps: Steps, owner: type, name: str, at: int) -> tuple[Any, int]:
    """An attribute of a class that is no instance of a class of the user's."""
    if type(owner) is not type:
        raise NotKept(f"the class {owner.__name__}, whose class is {type(owner).__name__}")
    named, slot = of_class(owner, name), steps.to("of_this_class", at, name)
    if named is None or hasattr(type(named), "__get__") and type(named) is not types.FunctionType:
        raise NotKept(f"the attribute {owner.__name__}.{name}")
    return named, slot


def of_module(steps: Steps, owner: types.ModuleType, name: str, at: int) -> tuple[Any, int]:
    if name not in owner.__dict__:
        raise NotKept(f"the attribute {owner.__name__}.{name}")
    return owner.__dict__[name], steps.to("item", steps.to("get", at, "__dict__"), name)
