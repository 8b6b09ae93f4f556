"""What the docstrings of public names leave unsaid. tools/build_reference.py makes the reference of them."""

import functools
import importlib
import inspect
import re

MENTIONED = re.compile(r"heddle(?:\.\w+)+|\b[\w.]+(?=\(\))")


def public_names(module_name):
    """The names that `__all__` of a module lists, with what they are; modules and torch's own classes left out."""
    module = importlib.import_module(module_name)
    for name in module.__all__:
        thing = getattr(module, name)
        if not inspect.ismodule(thing) and not getattr(thing, "__module__", "").startswith("torch."):
            yield f"{module_name}.{name}", thing


def public_members(owner):
    """Methods and properties of a class that are ours, those of its bases too."""
    for name in dir(owner):
        member = inspect.getattr_static(owner, name)
        ours = any(name in vars(base) for base in owner.__mro__ if base.__module__.startswith("heddle"))
        if ours and not name.startswith("_") and (callable(member) or isinstance(
                member, (property, staticmethod, classmethod))):
            yield name, getattr(owner, name) if not isinstance(member, property) else member


def arguments_of(function):
    """The names of a function's arguments. A compiled function has its signature as text; from Python 3.13 on inspect
    gives (*args, **kwargs) for it."""
    texts = [signature[0] for signature in getattr(function, "__nb_signature__", ())]
    if texts:
        return sorted({name for text in texts for name in re.findall(r"[(,] ?(\w+):", text)} - {"self", "arg"})
    try:
        return [name for name, one in inspect.signature(function).parameters.items()
                if name not in ("self", "args") and one.kind is not one.VAR_KEYWORD]
    except (TypeError, ValueError):
        return []


def resolved(name, module_name):
    """The object of a full name, or of one in the module; None."""
    path = name.split(".")[1:] if name.startswith("heddle.") else None
    root = importlib.import_module("heddle") if path else importlib.import_module(module_name)
    return functools.reduce(lambda owner, part: getattr(owner, part, None), path or name.split("."), root)


def texts_of(doc, module_name):
    """A docstring, and those of the functions and classes that it names, with their own."""
    texts, queue, seen = [], [doc], set()
    while queue:
        text = queue.pop()
        texts.append(text)
        prose = text.partition(">>>")[0]
        for name in set(MENTIONED.findall(prose)) - seen:
            seen.add(name)
            found = resolved(name, module_name)
            if found is not None and not inspect.ismodule(found):
                queue.append(found.__doc__ or "")
    return " ".join(texts)


def unsaid(function, doc, module_name):
    """The arguments that neither this docstring names, nor one that it refers to."""
    text = texts_of(doc, module_name)
    return [name for name in arguments_of(function) if not re.search(rf"\b{name}\b", text)]


def complaints(name, thing):
    """A line for each docstring that is missing, and for each argument that none names."""
    module_name = name.rpartition(".")[0]
    if not thing.__doc__:
        yield f"{name} has no docstring"
        return
    for argument in unsaid(thing, thing.__doc__, module_name):
        yield f"{name}: its docstring does not name {argument}"
    if not inspect.isclass(thing):
        return
    for member_name, member in public_members(thing):
        if not member.__doc__:
            yield f"{name}.{member_name} has no docstring"
        elif not isinstance(member, property):
            for argument in unsaid(member, f"{member.__doc__} {thing.__doc__}", module_name):
                yield f"{name}.{member_name}: its docstring does not name {argument}"
