"""By attributes of objects and classes."""

import dataclasses
import enum
import functools
import operator
import types
import weakref

from .registry import KEPT, WAYS, kept, way

the_number = 1.0


def of_object(make, name="number", mod=None):
    """A way by the attribute `name` of an object."""
    def found(face):
        owner = make()
        code = mod or (lambda owner: lambda score, b, h, q_idx, kv_idx: score * owner.number)
        return code(owner), lambda x: setattr(owner, name, x)
    return found


class Plain:
    number = 1.0

    def __init__(self):
        self.number = 1.0

    def whole(self, score, b, h, q_idx, kv_idx):
        return score * self.number

    def by_helper(self, score, b, h, q_idx, kv_idx):
        return times(score, self)

    def by_method(self, score, b, h, q_idx, kv_idx):
        return self.scaled(score)

    def scaled(self, x):
        return x * self.number

    def __call__(self, score, b, h, q_idx, kv_idx):
        return score * self.number


class Slotted:
    __slots__ = ("number",)

    def __init__(self):
        self.number = 1.0


class WithProperty:
    hidden = 1.0

    @property
    def number(self):
        return self.hidden


class WithGetattr:
    def __getattr__(self, name):
        return self.__dict__["held"]


class WithGetattribute:
    def __getattribute__(self, name):
        return object.__getattribute__(self, "held")


class Descriptor:
    held = 1.0

    def __get__(self, owner, kind=None):
        return Descriptor.held


class WithDescriptor:
    number = Descriptor()


class Cached:
    held = 1.0

    @functools.cached_property
    def number(self):
        return self.held


class Below(Plain):
    def by_super(self, score, b, h, q_idx, kv_idx):
        return super().whole(score, b, h, q_idx, kv_idx)


class Meta(type):
    held = 1.0

    @property
    def number(cls):
        return Meta.held


class OfMeta(metaclass=Meta):
    pass


@dataclasses.dataclass
class Data:
    number: float = 1.0


class Side(enum.Enum):
    left = 2.0
    right = 3.0

    def other(self):
        return the_number


def put_the_number(x):
    global the_number
    the_number = x


def times(x, owner):
    return x * owner.number


for name, make in {
    "attribute": Plain, "slot": Slotted, "dataclass": Data, "namespace": types.SimpleNamespace,
}.items():
    WAYS[name] = of_object(make)
    KEPT.add(name)
WAYS["property"] = of_object(WithProperty, "hidden")
WAYS["getattr method"] = of_object(WithGetattr, "held")
WAYS["getattribute method"] = of_object(WithGetattribute, "held")
WAYS["attribute by a helper"] = of_object(Plain, mod=lambda owner: owner.by_helper)
WAYS["super"] = of_object(Below, mod=lambda owner: owner.by_super)
for name in ("whole", "by_method"):
    WAYS[f"bound method {name}"] = of_object(Plain, mod=lambda owner, name=name: getattr(owner, name))
    KEPT.add(f"bound method {name}")
WAYS["callable object"] = of_object(Plain, mod=lambda owner: owner)
KEPT.add("callable object")
# Expressions that find the attribute of an object.
for text in ("getattr(owner, 'num' + 'ber')", "vars(owner)['number']", "owner.__dict__['number']",
             "operator.attrgetter('number')(owner)", "eval('owner.number')", "float('{0.number}'.format(owner))",
             "owner.__class__.__getattribute__(owner, 'number')", "weakref.ref(owner)().number",
             "next(iter(vars(owner).values()))"):
    WAYS[text] = of_object(Data, mod=lambda owner, text=text: eval(
        f"lambda score, b, h, q_idx, kv_idx: score * {text}",
        {"owner": owner, "operator": operator, "weakref": weakref}))




@way
def default_that_is_an_object(face):
    owner = Plain()

    def mod(score, b, h, q_idx, kv_idx, owner=owner):
        return score * owner.number
    return mod, lambda x: setattr(owner, "number", x)


@way
def cached_property(face):
    owner = Cached()

    def put(x):
        owner.held = x
        owner.__dict__.pop("number", None)
    return lambda score, b, h, q_idx, kv_idx: score * owner.number, put


@way
def counter_of_an_object(face):
    owner = Plain()

    def mod(score, b, h, q_idx, kv_idx):
        owner.number += 1.0
        return score * owner.number
    return mod, lambda x: setattr(owner, "number", x)


@kept
def class_of_an_object(face):
    kinds = {x: type("Kind", (Plain,), {"scaled": eval(f"lambda self, y: y * {x!r}")}) for x in face.numbers}
    owner = Plain()
    return (lambda score, b, h, q_idx, kv_idx: owner.scaled(score)), lambda x: setattr(owner, "__class__", kinds[x])


@kept
def member_of_an_enumeration(face):
    class Kind(enum.Enum):
        few = 0.5
        many = 2.0

    kind = Kind.few

    def mod(score, b, h, q_idx, kv_idx):
        return score * (0.5 if kind is Kind.few else kind.value)

    def put(x):
        nonlocal kind
        kind = Kind.few if x == 0.5 else Kind.many
    return mod, put


@way
def property_that_hides_what_the_object_has(face):
    owner = WithProperty()
    owner.__dict__["number"] = 7.0
    return (lambda score, b, h, q_idx, kv_idx: score * owner.number), lambda x: setattr(owner, "hidden", x)
