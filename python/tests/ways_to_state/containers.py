"""By containers."""

import collections

import numpy as np

from .registry import KEPT, WAYS, kept, way


def of_container(make, put, is_kept=False):
    """A way by a container, whose values are summed."""
    def found(face):
        held = make()
        put(held, 1.0)

        def mod(score, b, h, q_idx, kv_idx):
            return score * sum(held.values() if hasattr(held, "values") else held)

        def known(score, b, h, q_idx, kv_idx):
            return score * sum(held[key] for key in held) if type(held) is dict else score * sum(held)
        return known if is_kept else mod, lambda x: put(held, x)
    return found


def put_item(held, x):
    held["number"] = x


def put_all(held, x):
    held.clear()
    getattr(held, "append", getattr(held, "add", None))(x)


WAYS["dict"], WAYS["list"] = of_container(dict, put_item, True), of_container(list, put_all, True)
KEPT |= {"dict", "list"}
WAYS["dict by hasattr"] = of_container(dict, put_item)
WAYS["OrderedDict"] = of_container(collections.OrderedDict, put_item)
WAYS["ChainMap"] = of_container(collections.ChainMap, put_item)
WAYS["deque"], WAYS["set"] = of_container(collections.deque, put_all), of_container(set, put_all)
WAYS["bytearray of doubles"] = of_container(
    lambda: np.zeros(1), lambda held, x: memoryview(held).cast("B").__setitem__(slice(None), np.array([x]).tobytes()))




@kept
def nested_containers(face):
    held = {"a": [(1.0, {"b": [1.0]})]}

    def mod(score, b, h, q_idx, kv_idx):
        return score * held["a"][0][1]["b"][0]
    return mod, lambda x: held["a"][0][1].update(b=[x])


@way
def counter_in_a_dict(face):
    held = {"counter": 0.0}

    def mod(score, b, h, q_idx, kv_idx):
        held["counter"] += 1.0
        return score * held["counter"]
    return mod, lambda x: held.update(counter=x)


@way
def list_that_grows(face):
    held = []

    def mod(score, b, h, q_idx, kv_idx):
        held.append(1.0)
        return score * len(held)

    def put(x):
        held[:] = [0.0] * int(x * 2)
    return mod, put


@kept
def error_of_a_name(face):
    held = {}

    def mod(score, b, h, q_idx, kv_idx):
        try:
            return score * held["number"]
        except KeyError:
            return score * 4.0
    return mod, lambda x: held.clear() if x == 4.0 else held.update(number=x)




@way
def one_list_or_two(face):
    one, other = [1.0], [1.0]

    def mod(score, b, h, q_idx, kv_idx):
        return score * 2.0 if one is other else score * 3.0

    def put(x):
        nonlocal other
        other = one if x > 1 else [1.0]
    return mod, put
