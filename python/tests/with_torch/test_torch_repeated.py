"""C++ recognises mods that were met before (core/kept_mods.cc). Everything that its steps look at is changed here
between calls, and each result is held against torch's."""

import enum
import functools
import math
import operator
import threading
import types

import pytest
import torch

import heddle.torch
from agreement import assert_agrees
from heddle.torch import create_block_mask, flex_attention, scaled_dot_product_attention
from heddle.torch._tracing import kept, recording

L = 8
GENERATOR = torch.Generator().manual_seed(11)
Q, K, V = (torch.randn(1, 2, L, 8, generator=GENERATOR) for _ in range(3))
SCORE = heddle._core.parse("score", {}, {})
table = torch.linspace(0, 1, L)
factor = 0.5


def assert_right(*mods):
    """Twice: the second call takes what the first has kept."""
    for mod in mods:
        for _ in range(2):
            assert_agrees(Q, K, V, mod)


def scaled(number):
    def score(score, b, h, q_idx, kv_idx):
        return score * number

    return score


def summed(x, y):
    def score(score, b, h, q_idx, kv_idx):
        return score + x[kv_idx] - 2 * y[kv_idx]

    return score


def helped(one, other):
    def score(score, b, h, q_idx, kv_idx):
        return one(score) - 0.25 * other(score)

    return score


def by_global(score, b, h, q_idx, kv_idx):
    return score * factor + table[kv_idx]


def by_default(score, b, h, q_idx, kv_idx, scale=0.5, *, shift=0.25):
    return score * scale + shift * kv_idx


def by_name(score, b, h, q_idx, kv_idx):
    return score + abs(q_idx - kv_idx)


def cast_to(kind):
    return lambda score, b, h, q_idx, kv_idx: score + (score * 3).to(kind)


def by_container(held):
    return lambda score, b, h, q_idx, kv_idx: score * sum(held.values() if isinstance(held, dict) else held)


def by_sign_of_zero(held):
    return lambda score, b, h, q_idx, kv_idx: score * math.copysign(2.0, held[0])


def by_identity(x, y):
    return lambda score, b, h, q_idx, kv_idx: score * 2 if x is y else score


def by_bound_name(is_bound):
    if is_bound:
        number = 2.0

    def mod(score, b, h, q_idx, kv_idx):
        try:
            return score * number
        except NameError:
            return score

    return mod


def by_text(text):
    return lambda score, b, h, q_idx, kv_idx: score * len(text) if text != "abc" else score


class Side(enum.Enum):
    left = 1
    right = 2


def by_enum(side):
    return lambda score, b, h, q_idx, kv_idx: score * (2 if side is Side.left else 3)


def by_rounding(function):
    return lambda score, b, h, q_idx, kv_idx: score * function(2.5)


def times(number, x, *, by=1.0):
    return x * number * by


def partly(score, b, h, q_idx, kv_idx, *, number, more):
    return score * number + more


def by_partial(part):
    return lambda score, b, h, q_idx, kv_idx: part(score)


def linear(x, y):
    return lambda score, b, h, q_idx, kv_idx: score * (x * y + 1) if x > 0 else score - y


CHANGES = {
    "number": [scaled(x) for x in (0.5, -0.0, 0.0, 2, True, 2**20, 1e-3, -1.0)],
    "number and tensor": [
        scaled(x)
        for x in (0.5, torch.tensor(0.5), torch.tensor(2), 2, torch.nn.Parameter(torch.ones(()), requires_grad=False))
    ],
    "element type": [
        summed(table.to(kind), table) for kind in (torch.float32, torch.float64, torch.float16, torch.int32)
    ],
    "one tensor for two": [summed(table, table.clone()), summed(table, table), summed(table, table * 2)],
    "two tensors for one": [summed(table * 3, table * 3), summed(*2 * [table * 3]), summed(table * 3, table.clone())],
    "strides": [
        summed(torch.randn(L, 4)[:, 1], table),
        summed(table.flip(0), table),
        summed(table[:1].expand(L), table),
    ],
    "one function for two": [
        helped(lambda x: x * 2, lambda x: x * 3),
        helped(*2 * [lambda x: x * 2]),
        helped(*2 * [lambda x: x * 5]),
    ],
    "container": [
        by_container(x) for x in ([1, 2], [1, 2, 3], (1, 2), {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 2})
    ],
    "sign of zero": [by_sign_of_zero([x]) for x in (0.0, -0.0)],
    "identity of functions": [by_identity(scaled(1), scaled(1)), by_identity(*2 * [scaled(1)])],
    "identity of tensors": [by_identity(table.clone(), table), by_identity(table, table)],
    "a cell that is empty": [by_bound_name(False), by_bound_name(True)],
    "text": [by_text(x) for x in ("abc", "ab", "xyz")],
    "enum": [by_enum(x) for x in Side],
    "function of a module": [by_rounding(x) for x in (math.floor, math.ceil, round, lambda x: x)],
    "cast": [cast_to(x) for x in (torch.int32, torch.float32, torch.int64)],
    "partial": [
        by_partial(functools.partial(times, 2.0)),
        by_partial(functools.partial(times, 3.0, by=0.5)),
        by_partial(functools.partial(times, 3.0, by=0.25)),
        by_partial(functools.partial(functools.partial(times, by=2.0), 1.5)),
    ],
    "partial itself": [
        functools.partial(partly, number=x, more=y) for x, y in ((0.5, 1), (0.25, 1), (0.5, table.sum()), (1, 0.5))
    ],
    "guard": [linear(x, y) for x, y in ((1.0, 2.0), (3.0, 4.0), (-1.0, 2.0), (1, 2), (10**6, 10**6))],
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_value(name):
    assert_right(*CHANGES[name], *reversed(CHANGES[name]))


def test_a_kept_call_is_recognised_in_cpp(walks):
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, L, L, "cpu")
    first = [flex_attention(Q, K, V, scaled(x), mask) for x in (0.5, 2.0)]
    walks.mods = walks.calls = 0
    again = [flex_attention(Q, K, V, scaled(x), mask) for x in (0.5, 2.0)]
    assert all(map(torch.equal, first, again)) and not torch.equal(*again)
    for call in (
        lambda: flex_attention(Q, K, V),
        lambda: flex_attention(Q, K, V, return_aux=heddle.torch.AuxRequest(lse=True)),
        lambda: flex_attention(Q, K[:, :1], V[:, :1], enable_gqa=True),
        lambda: flex_attention(Q, K, V, scaled(3.0), scale=0.5),
        lambda: scaled_dot_product_attention(Q, K, V),
        lambda: scaled_dot_product_attention(Q, K, V, is_causal=True),
        lambda: scaled_dot_product_attention(Q, K, V, torch.zeros(1, 1, L, L)),
    ):
        call()
    assert (walks.mods, walks.calls) == (0, 0)


def test_create_block_mask_recognises_the_mask(walks):
    def of(window):
        return create_block_mask(lambda b, h, q_idx, kv_idx: q_idx - kv_idx <= window, None, None, L, L, "cpu")

    of(3)
    walks.mods = 0
    assert of(2).mask_mod is not None and of(4)._lazy.mask.params == {"mask_window": 4}
    assert walks.mods == 0


class Scaled:
    shift = 0.5

    def __init__(self, number):
        self.number, self.values = number, table * number

    def __call__(self, score, b, h, q_idx, kv_idx):
        return self.scaled(score) + self.shift * self.values[kv_idx]

    def scaled(self, x):
        return x * self.number

    def whole(self, score, b, h, q_idx, kv_idx):
        return score * self.number


class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), number), requires_grad=False)
        self.register_buffer("table", torch.arange(L) * number)
        self.number = number

    def forward(self, score, b, h, q_idx, kv_idx):
        return score * self.weight[h] + self.table[kv_idx] * self.number


def test_objects(walks, monkeypatch):
    """Their attributes, their class's, and what was put in place of either."""
    assert_right(*(Scaled(x) for x in (0.5, 2.0)), *(Scaled(x).whole for x in (0.5, 2.0)), Layer(0.5), Layer(2.0))
    walks.mods = 0
    mods = Scaled(3.0), Scaled(3.0).whole, Layer(3.0), Layer(3.0).forward
    for mod in mods:
        flex_attention(Q, K, V, mod)
    assert walks.mods == 4  # numbers of objects count by value
    walks.mods = 0
    for mod in mods:
        flex_attention(Q, K, V, mod)
    assert walks.mods == 0

    mod = Scaled(0.5)
    assert_right(mod)
    mod.shift = 0.25
    assert_right(mod)
    del mod.shift
    monkeypatch.setattr(Scaled, "shift", 2.0)
    assert_right(mod)
    monkeypatch.setattr(Scaled, "shift", torch.tensor(3.0))
    assert_right(mod)
    mod.values = mod.values.double() * 2
    assert_right(mod)
    monkeypatch.setattr(Scaled, "scaled", lambda self, x: x * 7 * self.number)
    assert_right(mod)
    monkeypatch.setattr(Scaled, "scaled", staticmethod(lambda x: x - 1))
    assert_right(mod)
    mod.scaled = lambda x: x - 2
    assert_right(mod)
    monkeypatch.setattr(Scaled, "number", property(lambda self: 9.0), raising=False)
    assert_right(Scaled.whole.__get__(mod))
    monkeypatch.setattr(Scaled, "__call__", lambda self, score, b, h, q_idx, kv_idx: score * 5)
    assert_right(mod)

    layer = Layer(0.5)
    assert_right(layer)
    layer.weight.data = layer.weight.data * 3
    assert_right(layer)
    layer.table = layer.table.double() + 1
    assert_right(layer)
    layer.weight = torch.nn.Parameter(torch.ones(2).half(), requires_grad=False)
    assert_right(layer)
    layer.forward = scaled(4.0)
    assert_right(layer)
    layer.forward = scaled(6.0)
    assert_right(layer)
    del layer.forward
    hook = layer.register_forward_hook(lambda module, arguments, out: out * 2)
    assert_right(layer)
    hook.remove()
    assert_right(layer)


class Late(Scaled):
    pass


def test_a_class_that_comes_to_compute_its_attributes(monkeypatch):
    mod = Late(0.5)
    assert_right(mod.whole)
    monkeypatch.setattr(
        Late,
        "__getattribute__",
        lambda self, name: 4.0 if name == "number" else object.__getattribute__(self, name),
        raising=False,
    )
    assert_right(mod.whole)


def test_globals():
    global factor, table
    before = factor, table
    try:
        assert_right(by_global)
        for factor in (0.25, 3, torch.tensor(0.75)):
            assert_right(by_global)
        table = table.flip(0)
        assert_right(by_global)
        table = lambda x: x  # noqa: E731
        with pytest.raises(TypeError):
            flex_attention(Q, K, V, lambda *args: by_global(*args))
    finally:
        factor, table = before
    assert_right(by_global)


def test_a_global_that_hides_a_builtin():
    assert_right(by_name)
    try:
        globals()["abs"] = lambda x: x * 2
        assert_right(by_name)
    finally:
        del globals()["abs"]
    assert_right(by_name)


def test_defaults_attributes_and_code(monkeypatch):
    assert_right(by_default)
    for defaults, keywords in (((2.0,), {"shift": 0.25}), ((2.0,), {"shift": 1}), ((table.sum(),), {"shift": 0})):
        monkeypatch.setattr(by_default, "__defaults__", defaults)
        monkeypatch.setattr(by_default, "__kwdefaults__", keywords)
        assert_right(by_default)

    def helper(x):
        return x * getattr(helper, "by", 1.0)

    mod = by_partial(helper)
    assert_right(mod)
    for by in (2.0, 3.0):
        helper.by = by
        assert_right(mod)
    del helper.by
    assert_right(mod)

    def other(x):
        return x + 1

    mod = scaled(0.5)
    assert_right(mod)
    mod.__code__ = (lambda number: lambda score, b, h, q_idx, kv_idx: score - number)(0).__code__
    assert_right(mod)


def test_cells():
    number = 0.5

    def mod(score, b, h, q_idx, kv_idx):
        return score * number

    for number in (0.5, 0.25, 2, torch.tensor(3.0), 0.5):
        assert_right(mod)
    del number
    with pytest.raises(NameError):
        flex_attention(Q, K, V, mod)
    number = 4.0
    assert_right(mod)


def test_tensors_changed_in_place():
    values = torch.linspace(0, 1, L)
    mod = summed(values, values)
    assert_right(mod)
    values.mul_(3)
    assert_right(mod)
    values.data = torch.linspace(2, -1, L)
    assert_right(mod)
    values.data = torch.linspace(2, -1, L).double()
    assert_right(mod)
    values.set_(torch.ones(L, dtype=torch.float64))
    assert_right(mod)
    values.resize_(2 * L).copy_(torch.arange(2 * L))
    assert_right(mod)


def test_a_shape_that_the_mod_looked_at():
    def of(values):
        return lambda score, b, h, q_idx, kv_idx: score + values[kv_idx] / values.shape[0] + values[-1]

    assert_right(*(of(torch.linspace(0, 1, length)) for length in (L, L + 4, L, L + 1)))


def test_a_capture_that_comes_to_require_a_gradient():
    values = torch.linspace(0, 1, L)
    mod = summed(values, values)
    assert_right(mod)
    values.requires_grad_()
    (got,) = torch.autograd.grad(flex_attention(Q, K, V, mod).square().sum(), values)
    assert got.any()
    with torch.no_grad():
        assert flex_attention(Q, K, V, mod).grad_fn is None
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: values[kv_idx] > 0.3, None, None, L, L, "cpu")
    q = Q.clone().requires_grad_()
    out = flex_attention(q, K, V, block_mask=mask)
    assert torch.autograd.grad(out.sum(), [q, values], allow_unused=True)[1] is None
    bias = torch.zeros(1, 1, L, L, requires_grad=True)
    assert torch.autograd.grad(scaled_dot_product_attention(Q, K, V, bias).square().sum(), bias)[0].any()


class Sub(torch.Tensor):
    pass


def test_a_capture_of_another_class():
    values = torch.linspace(0, 1, L)
    assert_right(summed(values, values))
    for other in (torch.nn.Parameter(values * 2, requires_grad=False), values.as_subclass(Sub) * 3):
        for _ in range(2):
            got = flex_attention(Q, K, V, summed(other, other))
            assert torch.equal(got, flex_attention(Q, K, V, summed(*2 * [torch.Tensor(other.detach())])))


def test_more_mods_than_are_kept():
    """Other code each time: what was kept goes, and results stay right."""
    want = flex_attention(Q, K, V, scale=8**-0.5 * 2)
    for i in range(600):
        scope = {}
        exec(f"def mod(score, b, h, q_idx, kv_idx):\n    return score * 2 + {i} * 0", scope)
        if i % 50 == 0:
            for _ in range(2):
                torch.testing.assert_close(flex_attention(Q, K, V, scope["mod"]), want)
        else:
            kept.known_of(recording.SCORE, "cpu").keep(scope["mod"], SCORE, [("is", -1, 0, None)], [], [], [], {})
    assert_right(scaled(0.5))


def test_many_variants_of_one_code():
    for steps in range(40):
        held = list(range(steps))
        assert_right(by_container(held))


def test_unknown_steps_are_refused():
    known = heddle._core.KeptMods()
    with pytest.raises(RuntimeError, match="no step"):
        known.keep(by_name, SCORE, [("guess", -1, 0, None)], [], [], [], {})
    assert known.find(by_name) is None


def test_several_threads_recognise_and_keep():
    numbers = [0.25 * i for i in range(1, 9)]
    wants = [flex_attention(Q, K, V, scale=8**-0.5 * x) for x in numbers]
    wrong = []

    def work(seed):
        for i in range(300):
            which = (i * seed) % len(numbers)
            code = types.FunctionType(
                scaled(0).__code__.replace(co_name=f"mod{i % 7}"), {}, None, None, (types.CellType(numbers[which]),)
            )
            if not torch.allclose(flex_attention(Q, K, V, code), wants[which], atol=1e-5):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_operators_as_mods():
    """Builtin functions inside a mod are themselves; another one is another expression."""
    assert_right(
        *(by_partial(functools.partial(function, 2.0)) for function in (operator.mul, operator.add, operator.mul))
    )
