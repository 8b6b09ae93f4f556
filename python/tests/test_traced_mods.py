"""A trace and the mod: it runs the mod's own code, on copies only where an array has to be a capture."""

import functools
import types

import numpy as np
import pytest

import heddle
from inputs import inputs

Q, K, V = inputs(batch=1, q_heads=2, kv_heads=2, q_len=6, kv_len=6)
TABLE = np.array([0.5, 2.0], np.float32)
SCALED = "score * table[h]"


def call(mod, **options):
    return heddle.attention(Q, K, V, score_mod=mod, **options)


def of_code(text, **scope):
    """The globals of a module with this code."""
    exec(text, scope)
    return scope


def assert_scaled(mod, table=TABLE):
    np.testing.assert_allclose(call(mod), call(SCALED, captures={"table": table}), rtol=1e-5, atol=1e-6)


def test_globals_that_a_mod_writes():
    scope = of_code("""
def mod(score, b, h, q_idx, kv_idx):
    global count, last, gone
    count += 1
    mod.calls += 1
    bump()
    last = table
    if count == 2:
        del gone
    return score * table[h]

def bump():
    globals()["by_helper"] += count
""", table=TABLE, count=0, by_helper=0, gone=1)
    scope["mod"].calls = 0
    for calls in (1, 2, 3):
        assert_scaled(scope["mod"])
        assert (scope["count"], scope["by_helper"], scope["mod"].calls) == (calls, calls * (calls + 1) // 2, calls)
    assert scope["last"] is TABLE and "gone" not in scope and scope["table"] is TABLE


def test_a_mod_that_fails_has_written_before():
    scope = of_code("""
def mod(score, b, h, q_idx, kv_idx):
    global count
    count += 1
    raise RuntimeError(table[h])
""", table=TABLE, count=0)
    with pytest.raises(RuntimeError):
        call(scope["mod"])
    assert scope["count"] == 1


def test_variables_containers_and_attributes_that_a_mod_writes():
    count, held, log, owner = 0, {"table": TABLE, "calls": 0}, [], types.SimpleNamespace(table=TABLE, calls=0)
    tables = [TABLE]

    def mod(score, b, h, q_idx, kv_idx):
        nonlocal count
        count += 1
        held["calls"] += 1
        held["score"] = 1.0
        log.append(count)
        tables.append(tables[0])
        owner.calls += 1
        return score * held["table"][h] * owner.table[h] / tables[-1][h]

    for calls in (1, 2, 3):
        assert_scaled(mod)
        assert (count, held["calls"], log, owner.calls) == (calls, calls, list(range(1, calls + 1)), calls)
    assert held["table"] is TABLE and all(one is TABLE for one in tables) and len(tables) == 4


def test_functions_that_reach_themselves():
    scope = of_code("""
def times(n, x):
    return x if n == 0 else times(n - 1, x) + x * table[0]

def even(n, x):
    return x if n == 0 else odd(n - 1, x)

def odd(n, x):
    return even(n - 1, x) * 2.0

def one(score, b, h, q_idx, kv_idx):
    return times(2, score)

def two(score, b, h, q_idx, kv_idx):
    return even(2, score) * two.table[h] / 2.0
""", table=TABLE)
    scope["two"].table = TABLE
    np.testing.assert_allclose(call(scope["one"]), call("score * 2.0"), rtol=1e-5, atol=1e-6)
    for _ in range(2):
        assert_scaled(scope["two"])

    def inner(n, x):
        return x if n == 0 else inner(n - 1, x)

    assert_scaled(lambda score, b, h, q_idx, kv_idx: inner(3, score) * TABLE[h])


def test_containers_that_hold_themselves():
    held = [TABLE]
    held.append(held)
    loop = {"held": held}
    loop["loop"] = loop
    for _ in range(2):
        assert_scaled(lambda score, b, h, q_idx, kv_idx: score * held[1][1][0][h])
        assert_scaled(lambda score, b, h, q_idx, kv_idx: score * loop["loop"]["held"][0][h])


class Bias:
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return 1

    def __getitem__(self, h):
        return self.table[h]

    def __call__(self, x, h):
        return x * self.table[h]


@pytest.mark.parametrize("mod, line", [
    (lambda score, b, h, q_idx, kv_idx: score + np.arange(2)[h], "np.arange"),
    (lambda score, b, h, q_idx, kv_idx: score + tables[0]()[h], "tables"),
])
def test_arrays_that_no_name_leads_to(mod, line):
    with pytest.raises(TypeError, match=r"mod <lambda>, .*test_traced_mods.py:\d+ .*captures") as raised:
        call(mod)
    assert line in str(raised.value)


def held_by(owner, h):
    is_bias = isinstance(owner, Bias) and type(owner) is Bias and getattr(owner, "table") is owner.table
    return owner.table[h] if is_bias else 0.0


@pytest.mark.parametrize("mod", [
    lambda score, b, h, q_idx, kv_idx: score * (lambda bias: bias.table[h])(bias),
    lambda score, b, h, q_idx, kv_idx: bias(score, h),
    lambda score, b, h, q_idx, kv_idx: score * held_by(bias, h) * len([bias]) * float(bias in [bias]),
    lambda score, b, h, q_idx, kv_idx: score * bias[h] * len(bias) * float(bool(bias) and bias == bias),
    lambda score, b, h, q_idx, kv_idx: score * {"biases": [bias]}["biases"][0].table[h],
])
def test_arrays_of_objects_that_a_mod_hands_on(mod):
    global count
    count = 0

    def counting(score, b, h, q_idx, kv_idx):
        global count
        count += 1
        return mod(score, b, h, q_idx, kv_idx)

    for _ in range(2):
        assert_scaled(mod)
        assert_scaled(counting)
    assert count == 2


count, tables = 0, [TABLE.copy]
bias = Bias(TABLE)


def test_only_what_is_read_is_captured():
    held = {"table": TABLE, "other": np.ones(3), "text": np.array(["a"]), "complex": np.ones(2, complex)}
    mask = heddle.BlockMask.build(lambda b, h, q_idx, kv_idx: held["table"][h] > 0.0, 6, 6, heads=2, block=2)
    assert list(mask.captures) == ["table"] and mask.captures["table"] is TABLE
    assert_scaled(lambda score, b, h, q_idx, kv_idx: score * held["table"][h] * len(held["text"]))
    with pytest.raises(ValueError, match="complex128"):
        call(lambda score, b, h, q_idx, kv_idx: score * held["complex"][h])


def test_gradients_of_arrays_behind_objects():
    def by_table(table, score, b, h, q_idx, kv_idx):
        return score * table[h]

    owner = types.SimpleNamespace(table=TABLE)
    options = {"captures": {"table": TABLE}, "score_mod": SCALED}
    o, lse = heddle.attention(Q, K, V, return_lse=True, **options)
    want = heddle.attention_backward(Q, K, V, o, lse, V, d_captures=["table"], **options).d_captures["table"]
    for mod in (functools.partial(by_table, TABLE), lambda score, b, h, q_idx, kv_idx: score * owner.table[h]):
        got = heddle.attention_backward(Q, K, V, o, lse, V, d_captures=[TABLE], score_mod=mod).of(TABLE)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_arrays_as_pythons_code_sees_them():
    """As NumPy's, while the kernel reads the same ones."""
    scale, seen = np.array(2.0, np.float32), []

    def mod(score, b, h, q_idx, kv_idx):
        seen.append((
            isinstance(TABLE, np.ndarray), TABLE.dtype, TABLE.ndim, TABLE.shape, len(TABLE), TABLE.tolist(),
            float(np.sqrt(TABLE[1] * 2)), bool(TABLE[0] < TABLE[1]), TABLE[0] if TABLE[0] > 1 else 0, -TABLE[1] == -2.0,
            float(abs(scale) + 1), (TABLE * 2).sum(), [*TABLE][1], 0.5 in TABLE, f"{scale:.1f}", round(float(scale), 1),
            scale.item(), type(TABLE) is np.ndarray, type(TABLE[0]), isinstance(TABLE[0], np.float32),
            isinstance(type(TABLE), type), divmod(TABLE, 2)[1].tolist(), {TABLE[0]: 1}[0.5], TABLE[-1]))
        return scale * score * TABLE[h] / scale

    assert_scaled(mod)
    assert [list(map(str, one)) for one in seen] == [list(map(str, (
        True, np.dtype("f4"), 1, (2,), 2, [0.5, 2.0], 2.0, True, 0, True, 3.0, np.float32(5.0), np.float32(2.0), True,
        "2.0", 2.0, 2.0, True, np.float32, True, True, [0.5, 0.0], 1, np.float32(2.0))))]


def test_arrays_that_c_code_asks_for():
    """It takes no stand-in: the mod is traced with the array itself, at each call."""
    values = np.array([2.0], np.float32)

    def mod(score, b, h, q_idx, kv_idx):
        return score * memoryview(values)[0]

    for x in (2.0, 3.0):
        values[0] = x
        np.testing.assert_allclose(call(mod), call(f"score * {x}"), rtol=1e-5, atol=1e-6)


def test_arrays_that_a_mod_writes():
    values = np.array([2.0], np.float32)

    def mod(score, b, h, q_idx, kv_idx):
        mine = values
        mine += 1
        values[0] *= 2
        return score * float(values[0])

    for x in (6.0, 14.0):
        np.testing.assert_allclose(call(mod), call(f"score * {x}"), rtol=1e-5, atol=1e-6)
        assert values[0] == x


def test_negative_indices_count_from_the_end():
    q, k = np.ones((1, 1, 6, 8), "f4"), np.ones((1, 1, 9, 8), "f4")
    v = np.arange(72, dtype="f4").reshape(1, 1, 9, 8)
    for length in (5, 7):
        table = np.arange(length, dtype="f4")

        def mod(score, b, h, q_idx, kv_idx):
            return score + table[kv_idx % 5 - 5] + table[heddle.minimum(kv_idx, 3) - 2]

        keys = np.arange(9)
        bias = table[keys % 5 - 5] + table[np.minimum(keys, 3) - 2]
        weights = np.exp(bias - bias.max())
        expected = (weights / weights.sum()) @ v[0, 0]
        np.testing.assert_allclose(heddle.attention(q, k, v, score_mod=mod)[0, 0, 0], expected, rtol=1e-5)
