"""By arrays. `face.array(x)` makes one, `face.fill(array, x)` changes it in place."""

import functools
import types

from .registry import kept, way


@kept
def array(face):
    table = face.array([1.0, 1.0])
    return (lambda score, b, h, q_idx, kv_idx: score * table[h]), lambda x: face.fill(table, x)


@kept
def array_that_is_replaced(face):
    table = face.array([1.0, 1.0])

    def put(x):
        nonlocal table
        table = face.array([x, x])
    return (lambda score, b, h, q_idx, kv_idx: score * table[h]), put


@kept
def array_without_axes(face):
    scale = face.array(1.0)
    return (lambda score, b, h, q_idx, kv_idx: score * scale), lambda x: face.fill(scale, x)


@kept
def array_first(face):
    scale = face.array(1.0)
    return (lambda score, b, h, q_idx, kv_idx: scale * score), lambda x: face.fill(scale, x)


@kept
def array_in_a_dict(face):
    held = {"tables": [face.array([1.0, 1.0])]}
    return ((lambda score, b, h, q_idx, kv_idx: score * held["tables"][0][h]),
            lambda x: held.update(tables=[face.array([x, x])]))


@kept
def array_in_a_tuple(face):
    held = 2.0, face.array([1.0, 1.0])
    return (lambda score, b, h, q_idx, kv_idx: score * held[1][h]), lambda x: face.fill(held[1], x)


class Holder:
    def __init__(self, table):
        self.table = table
        self.inner = types.SimpleNamespace(table=table)

    def scaled(self, score, b, h, q_idx, kv_idx):
        return score * self.table[h]

    def __call__(self, score, b, h, q_idx, kv_idx):
        return score * self.table[h]

    @property
    def found(self):
        return self.table


def scaled_by(table, score, b, h, q_idx, kv_idx):
    return score * table[h]


def of_holder(name, mod, is_kept=True):
    def made(face):
        holder = Holder(face.array([1.0, 1.0]))
        return mod(holder), lambda x: face.fill(holder.table, x)
    made.__name__ = f"array of a holder: {name}"
    return kept(made) if is_kept else way(made)


of_holder("attribute", lambda holder: lambda score, b, h, q_idx, kv_idx: score * holder.table[h])
of_holder("attribute of an attribute", lambda holder: lambda score, b, h, q_idx, kv_idx: score * holder.inner.table[h])
of_holder("method", lambda holder: lambda score, b, h, q_idx, kv_idx: holder.scaled(score, b, h, q_idx, kv_idx))
of_holder("bound method", lambda holder: holder.scaled)
of_holder("object", lambda holder: holder)
of_holder("partial", lambda holder: functools.partial(scaled_by, holder.table))
of_holder("partial of a method", lambda holder: functools.partial(holder.scaled))
of_holder("property", lambda holder: lambda score, b, h, q_idx, kv_idx: score * holder.found[h], False)
# No step watches an array's content, which Python's code sees here.
for text in ("float(holder.table[0])", "float(holder.table.max())", "sum(float(one) for one in holder.table) / 2",
             "max(holder.table.tolist())", "float((holder.table * 2.0)[0]) / 2", "float([*holder.table][1])",
             "float(2.0 * holder.table[0] + holder.table[1]) / 3"):
    of_holder(text, lambda holder, text=text: eval(
        f"lambda score, b, h, q_idx, kv_idx: score * {text}", {"holder": holder}), False)


@kept
def elements_at_known_places(face):
    table = face.array([1.0, 1.0])
    return ((lambda score, b, h, q_idx, kv_idx: score * (2.0 * table[0] - table[1])),
            lambda x: face.fill(table, x))


@way
def number_of_an_array(face):
    scale = face.array(1.0)
    return (lambda score, b, h, q_idx, kv_idx: score * float(scale)), lambda x: face.fill(scale, x)


@way
def branch_by_an_array(face):
    scale = face.array(1.0)
    return ((lambda score, b, h, q_idx, kv_idx: score * 2.0 if float(scale) > 1 else score * 3.0),
            lambda x: face.fill(scale, x))


@way
def shape_of_an_array(face):
    table = face.array([1.0])

    def put(x):
        nonlocal table
        table = face.array([0.0] * int(2 * x))
    return (lambda score, b, h, q_idx, kv_idx: score * table.shape[0]), put


@way
def shape_of_a_row(face):
    table = face.array([[1.0]])

    def put(x):
        nonlocal table
        table = face.array([[0.0] * int(2 * x)] * 2)
    return (lambda score, b, h, q_idx, kv_idx: score * table[h * 0].shape[0]) if face.name == "torch" else (
        lambda score, b, h, q_idx, kv_idx: score * table.shape[1]), put


@kept
def rank_of_an_array(face):
    table = face.array([1.0])

    def put(x):
        nonlocal table
        table = face.array([1.0] if x < 1 else [[1.0]] if x < 2 else [[[1.0]]])
    return (lambda score, b, h, q_idx, kv_idx: score * table.ndim), put


@kept
def type_of_elements(face):
    table = face.array([1.0, 1.0])

    def put(x):
        nonlocal table
        table = face.integers([int(2 * x)] * 2) if x < 2 else face.array([x, x])
    return (lambda score, b, h, q_idx, kv_idx: score * table[h]), put
