"""Names of torch.nn.attention as the installed torch has them: functions, arguments, fields, operators.

`python attention_names.py` prints them, one a line.
"""

import inspect

import torch
from torch.nn.attention import bias, flex_attention, varlen

import torch.nn.attention as attention

MODULES = {"attention": attention, "flex_attention": flex_attention, "varlen": varlen, "bias": bias}
OPERATORS = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_flash_attention_forward",
    "_flash_attention_forward_no_dropout_inplace",
    "_flash_attention_backward",
)


def arguments(name, function):
    return [name, *(f"{name}({argument})" for argument in inspect.signature(function).parameters if argument != "self")]


def names_of_class(name, kind):
    found = [name]
    fields = [*getattr(kind, "__annotations__", ()), *getattr(kind, "_fields", ())]
    fields += [*getattr(kind, "_TENSOR_ATTRS", ()), *getattr(kind, "_CONTEXT_ATTRS", ())]
    found += [f"{name}.{field}" for field in fields if not field.startswith("_")]
    for member, value in vars(kind).items():
        if member.startswith("_") and member not in ("__init__", "_adjust"):
            continue
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function):
            found += [one for one in arguments(f"{name}.{member}", function) if not one.endswith("(cls)")]
    return found


def names():
    found = []
    for short, module in MODULES.items():
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) and not issubclass(value, tuple) and not value.__module__.startswith("torch._C"):
                found += names_of_class(f"{short}.{name}", value)
            elif inspect.isclass(value):
                found += [f"{short}.{name}", *(f"{short}.{name}.{x}" for x in getattr(value, "_fields", ()))]
            else:
                found += arguments(f"{short}.{name}", value) if callable(value) else [f"{short}.{name}"]
    for name in OPERATORS:
        operator = getattr(torch.ops.aten, name, None)
        if operator is not None:
            schema = operator.default._schema
            found += [f"aten.{name}", *(f"aten.{name}({one.name})" for one in schema.arguments)]
    return sorted(set(found))


if __name__ == "__main__":
    print("\n".join(names()))
