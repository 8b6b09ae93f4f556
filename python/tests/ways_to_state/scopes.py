"""By names of a scope: globals, builtins, modules, the environment."""

import builtins
import contextvars
import inspect
import os
import random
import sys
import threading
import types

import numpy as np

from .objects import Data, Descriptor, Meta, OfMeta, Side, WithDescriptor, put_the_number
from .registry import KEPT, WAYS, way

counted = 0
variable = contextvars.ContextVar("variable", default=1.0)
per_thread = threading.local()
settings = types.ModuleType("settings_of_a_test")
sys.modules[settings.__name__] = settings


def of_global(text, is_kept=False, put=None, **scope):
    """A way by code that an expression makes, in globals of its own: `number` and `scope`."""
    names = {"number": 1.0, "os": os, "sys": sys, "random": random, "np": np, "inspect": inspect, **scope}
    exec(f"def mod(score, b, h, q_idx, kv_idx):\n    return score * ({text})\n", names)
    found = lambda face: (names["mod"], put or (lambda x: names.__setitem__("number", x)))  # noqa: E731
    WAYS[text] = found
    if is_kept:
        KEPT.add(text)


def put_setting(x):
    settings.number = x


def put_environment(x):
    os.environ["NUMBER_OF_A_TEST"] = str(x)


class Finite:
    """A generator of random numbers whose next one is known."""

    def __init__(self):
        self.state = random.Random(0)

    def put(self, x):
        self.next = x

    def draw(self):
        return self.state.random() * 0 + self.next


finite = Finite()
of_global("number", True)
of_global("(lambda: number)()", True)
of_global("[one * 1.0 for one in (number,)][0]", True)
of_global("globals()['number']")
of_global("eval('number')")
of_global("exec('found = number', globals()) or globals()['found']")
of_global("(lambda: 0).__globals__['number']")
of_global("mod.__globals__['number']")
of_global("sys._getframe().f_globals['number']")
of_global("inspect.currentframe().f_globals['number']")
of_global("(lambda: (yield))().gi_frame.f_globals['number']")
of_global("vars(sys.modules['settings_of_a_test'])['number']", put=put_setting)
of_global("sys.modules['settings_of_a_test'].number", put=put_setting)
of_global("settings.number", True, put_setting, settings=settings)
of_global("__import__('settings_of_a_test').number", put=put_setting)
of_global("float(os.environ['NUMBER_OF_A_TEST'])", put=put_environment)
of_global("float(os.environ.get('NUMBER_OF_A_TEST'))", put=put_environment)
of_global("float(os.getenv('NUMBER_OF_A_TEST'))", put=put_environment)
of_global("variable.get()", put=variable.set, variable=variable)
of_global("local.number", put=lambda x: setattr(per_thread, "number", x), local=per_thread)
of_global("draw()", put=finite.put, draw=finite.draw)
of_global("(number_of_builtins)", put=lambda x: setattr(builtins, "number_of_builtins", x))
of_global("kind.number", True, put=lambda x: setattr(Data, "number", x), kind=Data)
of_global("kind.number * 1.0", put=lambda x: setattr(Meta, "held", x), kind=OfMeta)
of_global("owner.number", put=lambda x: setattr(Descriptor, "held", x), owner=WithDescriptor())
of_global("side.other()", True, put=put_the_number, side=Side.left)
of_global("proxy['number']", put=lambda x: setattr(Data, "number", x), proxy=vars(Data))




@way
def name_that_no_scope_has_yet(face):
    names = {}
    exec("def mod(score, b, h, q_idx, kv_idx):\n    try:\n        return score * new_builtin\n"
         "    except NameError:\n        return score * 7.0\n", names)

    def put(x):
        vars(builtins).pop("new_builtin", None)
        if x > 1:
            builtins.new_builtin = x
    return names["mod"], put


@way
def local_variables(face):
    number = 1.0

    def mod(score, b, h, q_idx, kv_idx):
        number  # noqa: B018  so that locals() has it
        return score * locals()["number"]

    def put(x):
        nonlocal number
        number = x
    return mod, put


@way
def imported_inside(face):
    def mod(score, b, h, q_idx, kv_idx):
        import settings_of_a_test

        return score * settings_of_a_test.number
    return mod, put_setting


@way
def import_of_a_name(face):
    def mod(score, b, h, q_idx, kv_idx):
        from settings_of_a_test import number

        return score * number
    return mod, put_setting


@way
def counter_of_globals(face):
    def mod(score, b, h, q_idx, kv_idx):
        global counted
        counted += 1.0
        return score * counted
    return mod, lambda x: globals().__setitem__("counted", x)


