"""Random programs as mods, over random state that changes between calls, each held against itself run on numbers."""

import functools
import random
import types

import numpy as np
import pytest

import heddle
from inputs import inputs

Q, K, V = inputs(batch=1, q_heads=2, kv_heads=2, q_len=6, kv_len=6)
SCORES = np.einsum("bhqd,bhkd->bhqk", Q.astype(float), K.astype(float)) / np.sqrt(Q.shape[-1])
PROGRAMS = 40

LEAVES = """
number | cell | held['x'] | owner.x | owner.inner.x | owner.held['x'] | owner.items[0] | items[0] | helper(1.0)
owner.get() | owner.computed | table[h] | owner.table[h] | held['t'][h] | tables[0][h] | owner.row(h) | scale | pair[1]
float(table[0]) | table[1] | mod.x | space.x | module.x | module.table[h] | part() | kind.x | keyword | max(items)
sum(more.values()) | len(items) | float(owner.table.max()) | (lambda: number)() | [one for one in items][0] | pair[2][h]
globals()['number'] | getattr(owner, 'x') | float(str(number)) | int(number > 1) | np.float32(number) | scalar
(owner.x if cell > 1 else number) | owner.inner.table[h]
"""
LEAVES = [one.strip() for line in LEAVES.strip().split("\n") for one in line.split(" | ")]
STATEMENTS = [
    "a = a * 1.5 if number > 1 else a",
    "for one in range(2): a = a + one * number",
    "def inner(y): return y * {leaf}\n    a = a + inner(1.0) * 0.1",
    "a = a + sum(one * 0.1 for one in (number, 1.0))",
    "count = count + 1",
    "try: a = a + held['y']\n    except KeyError: a = a + 1",
    *5 * ["a = a + ({expr}) * 0.1"],
]


class Owner:
    def __init__(self, table):
        self.x, self.table, self.held, self.items, self.inner = 1.0, table, {"x": 1.0}, [1.0], None

    def get(self):
        return self.x

    def row(self, h):
        return self.table[h]

    @property
    def computed(self):
        return self.x


class Program:
    def __init__(self, seed):
        self.random = random.Random(seed)
        owner, self.kind = Owner(self.table()), type("Kind", (), {"x": 1.0})
        owner.inner = Owner(self.table())
        self.scope = {
            "np": np, "number": 1.0, "count": 0, "owner": owner, "kind": self.kind, "more": {"z": 1.0},
            "held": {"x": 1.0, "t": self.table()}, "items": [1.0], "tables": [self.table()],
            "table": self.table(), "scalar": np.float32(1), "scale": np.array(1.0, np.float32),
            "pair": (1, 1.0, self.table()), "space": types.SimpleNamespace(x=1.0),
            "module": types.ModuleType("module_of_a_test"), "part": functools.partial(lambda x: x, 2.0)}
        self.scope["module"].x, self.scope["module"].table = 1.0, self.table()
        body = "\n    ".join(self.statement() for _ in range(self.random.randint(1, 4)))
        self.counts = body.count("count + 1")
        declared = "global count\n    " if self.counts else ""
        self.text = (f"def mod(score, b, h, q_idx, kv_idx, *, keyword=1.0):\n    {declared}a = score\n    {body}\n"
                     "    return a\n")
        made = "\n".join(f"    {line}" for line in self.text.split("\n"))
        exec(f"def make(cell):\n{made}\n    def put(x):\n        nonlocal cell\n        cell = x\n    return mod, put\n"
             "def helper(x): return x * number\n", self.scope)
        self.mod, self.put = self.scope["make"](1.0)
        self.scope["mod"], self.mod.x = self.mod, 1.0

    def value(self):
        return self.random.choice((0.5, 1.0, 1.5, 2.0, -1.0))

    def table(self):
        return np.array([self.value(), self.value()], np.float32)

    def expression(self, depth=0):
        if depth > 2 or self.random.random() < 0.35:
            return self.random.choice(LEAVES)
        return f"({self.expression(depth + 1)} {self.random.choice('+*-')} {self.expression(depth + 1)})"

    def statement(self):
        return self.random.choice(STATEMENTS).format(leaf=self.random.choice(LEAVES), expr=self.expression())

    def change(self):
        scope, owner, x = self.scope, self.scope["owner"], self.value()
        changes = [
            lambda: scope.update(number=x), lambda: self.put(x), lambda: scope["held"].update(x=x),
            lambda: setattr(owner, "x", x), lambda: setattr(owner.inner, "x", x), lambda: owner.held.update(x=x),
            lambda: owner.items.__setitem__(0, x), lambda: scope["items"].__setitem__(slice(None), [x] * 2),
            lambda: scope["table"].fill(x), lambda: scope.update(table=self.table()),
            lambda: setattr(owner, "table", self.table()), lambda: scope["held"].update(t=self.table()),
            lambda: scope["tables"][0].fill(x), lambda: scope["scale"].fill(x), lambda: setattr(self.mod, "x", x),
            lambda: setattr(scope["space"], "x", x), lambda: vars(scope["module"]).update(x=x, table=self.table()),
            lambda: setattr(self.kind, "x", x), lambda: self.mod.__kwdefaults__.update(keyword=x),
            lambda: scope["more"].update(z=x), lambda: scope.update(scalar=np.float32(x)),
            lambda: scope.update(pair=(1, x, self.table())), lambda: owner.inner.table.fill(x),
            lambda: scope["held"].update(y=x), lambda: scope["held"].pop("y", None)]
        for one in self.random.choices(changes, k=3):
            one()

    def wanted(self):
        """The program is linear in the score: its values at 0 and 1 say what it is."""
        weights = np.empty_like(SCORES)
        for h in range(2):
            shift, one = (float(self.mod(score, 0, h, 0, 0)) for score in (0.0, 1.0))
            weights[:, h] = shift + (one - shift) * SCORES[:, h]
        weights = np.exp(weights - weights.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ V


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs(seed):
    program = Program(seed)
    for step in range(8):
        want, before = program.wanted(), program.scope["count"]
        got = heddle.attention(Q, K, V, score_mod=program.mod)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4, err_msg=f"step {step} of\n{program.text}")
        assert program.scope["count"] - before == program.counts, program.text
        if step % 2:  # so that what is kept serves, too
            program.change()
