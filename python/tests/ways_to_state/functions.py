"""By variables, defaults and other functions."""

import functools
import random
import sys

import numpy as np

from .registry import kept, way


class Real(float):
    pass


@kept
def cell(face):
    number = 1.0

    def mod(score, b, h, q_idx, kv_idx):
        return score * number

    def put(x):
        nonlocal number
        number = x
    return mod, put


@kept
def default(face):
    def mod(score, b, h, q_idx, kv_idx, number=1.0):
        return score * number
    return mod, lambda x: setattr(mod, "__defaults__", (x,))


@kept
def keyword_default(face):
    def mod(score, b, h, q_idx, kv_idx, *, number=1.0):
        return score * number
    return mod, lambda x: mod.__kwdefaults__.update(number=x)


@kept
def function_attribute(face):
    def mod(score, b, h, q_idx, kv_idx):
        return score * mod.number
    return mod, lambda x: setattr(mod, "number", x)


@kept
def numpy_scalar(face):
    number = np.float32(1.0)

    def mod(score, b, h, q_idx, kv_idx):
        return score * number

    def put(x):
        nonlocal number
        number = np.float32(x)
    return (mod, put) if face.name == "numpy" else cell(face)


@way
def float_of_a_subclass(face):
    number = Real(1.0)

    def mod(score, b, h, q_idx, kv_idx):
        return score * (number + 0.0)

    def put(x):
        nonlocal number
        number = Real(x)
    return mod, put


@kept
def partial(face):
    def scaled(number, score, b, h, q_idx, kv_idx):
        return score * number
    held = {"number": 1.0}
    mod = functools.partial(scaled, 1.0)
    return mod, lambda x: mod.__setstate__((scaled, (x,), {}, {})) or held


@way
def cached_function(face):
    number = 1.0

    @functools.lru_cache
    def found():
        return number

    def put(x):
        nonlocal number
        number = x
        found.cache_clear()
    return lambda score, b, h, q_idx, kv_idx: score * found(), put


@way
def generator(face):
    number = 1.0

    def numbers():
        while True:
            yield number
    made = numbers()

    def put(x):
        nonlocal number
        number = x
    return lambda score, b, h, q_idx, kv_idx: score * next(made), put


@way
def seeded_random(face):
    numbers = {random.Random(seed).random(): seed for seed in range(50)}

    def put(x):
        random.seed(min(numbers.values(), key=lambda seed: abs(random.Random(seed).random() - x / 4)))
    return lambda score, b, h, q_idx, kv_idx: score * random.random(), put


@way
def seeded_numpy(face):
    return (lambda score, b, h, q_idx, kv_idx: score * float(np.random.rand())), lambda x: np.random.seed(int(8 * x))


@way
def counter_of_a_function(face):
    counter = 0.0

    def mod(score, b, h, q_idx, kv_idx):
        nonlocal counter
        counter += 1.0
        return score * counter

    def put(x):
        nonlocal counter
        counter = x
    return mod, put


@kept
def type_of_a_number(face):
    number = 1.0

    def mod(score, b, h, q_idx, kv_idx):
        return score * weighed(number)

    def put(x):
        nonlocal number
        number = int(x) if x == int(x) else x
    return mod, put


def weighed(x):
    return 2.0 * x if type(x) is int else x


@kept
def instance_of_int(face):
    number = 1.0

    def mod(score, b, h, q_idx, kv_idx):
        return score * number if isinstance(number, float) else score * 2.0 * number

    def put(x):
        nonlocal number
        number = int(x) if x == int(x) else x
    return mod, put


@kept
def code(face):
    def mod(score, b, h, q_idx, kv_idx):
        return score
    return mod, lambda x: setattr(mod, "__code__", eval(f"lambda score, b, h, q_idx, kv_idx: score * {x!r}").__code__)




@kept
def library_imported_inside(face):
    number = 1.0

    def mod(score, b, h, q_idx, kv_idx):
        import math
        from operator import mul

        return score * mul(math.pi / math.pi, number)

    def put(x):
        nonlocal number
        number = x
    return mod, put


@way
def library_function_imported_inside(face):
    def mod(score, b, h, q_idx, kv_idx):
        import numpy.random as random

        return score * (1.0 + 0.0 * random.rand())
    return mod, lambda x: None


@way
def module_imported_into_a_variable_of_two(face):
    number = 1.0

    def mod(score, b, h, q_idx, kv_idx):
        import math as module
        if number > 2.0:
            import settings_of_a_test as module
        return score * (module.number if number > 2.0 else module.pi / module.pi)

    def put(x):
        nonlocal number
        number = x
        sys.modules["settings_of_a_test"].number = x
    return mod, put
