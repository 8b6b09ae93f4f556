"""A kept expression serves only while all that its mod reached is what it was: ways to reach state (ways_to_state),
whose numbers change between calls, each held against the mod called with plain numbers."""

import itertools
import os
import subprocess
import sys
import time
import types

import numpy as np
import pytest

import heddle
from heddle._tracing import trace
from inputs import inputs
from ways_to_state import FREE, KEPT, WAYS, together

Q, K, V = inputs(batch=1, q_heads=2, kv_heads=2, q_len=6, kv_len=6)


class Face:
    name = "numpy"
    numbers = (0.5, 2.0, 3.0, 4.0)

    @staticmethod
    def array(values):
        return np.array(values, np.float32)

    @staticmethod
    def integers(values):
        return np.array(values, np.int32)

    @staticmethod
    def fill(array, x):
        array[...] = x


@pytest.fixture
def traces(monkeypatch):
    """Counts the traces."""
    counted = []
    called = trace.Traced._called

    def counting(*arguments):
        counted.append(arguments)
        return called(*arguments)

    monkeypatch.setattr(trace.Traced, "_called", counting)
    return counted


def assert_right(mod, put, numbers):
    for x in numbers:
        put(x)
        factor = float(mod(1.0, 0, 0, 0, 0))
        put(x)
        got = heddle.attention(Q, K, V, score_mod=mod)
        want = heddle.attention(Q, K, V, scale=Q.shape[-1] ** -0.5 * factor)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6, err_msg=f"number {x}")


@pytest.mark.parametrize("name", WAYS)
def test_another_number_is_another_result(name, traces):
    mod, put = WAYS[name](Face)
    assert_right(mod, put, (0.5, 2.0, 0.5, 0.5, 4.0, 2.0, 3.0, 3.0, 0.5))
    traces.clear()
    assert_right(mod, put, (0.5, 2.0, 4.0, 3.0))
    if name not in FREE:
        assert len(traces) == (0 if name in KEPT else 4)


@pytest.mark.parametrize("seed", range(40))
def test_random_ways_together(seed):
    for mod, put in together(Face, seed):
        assert_right(mod, put, [0, 0])


def test_traced_always(traces):
    """The setting: also what is kept already is traced, and serves again afterwards."""
    mod, put = WAYS["cell"](Face)
    assert_right(mod, put, (0.5, 0.5))
    traces.clear()
    heddle.set_trace_always(True)
    try:
        assert heddle.traces_always()
        assert_right(mod, put, (0.5, 0.5, 2.0))
        assert len(traces) == 3
    finally:
        heddle.set_trace_always(False)
    assert_right(mod, put, (0.5, 0.5))
    assert len(traces) == 3


@pytest.mark.parametrize("value, always", [("1", True), ("", False), (None, False)])
def test_the_variable_that_traces_always(value, always):
    environment = {**os.environ, **({} if value is None else {"HEDDLE_TRACE_ALWAYS": value})}
    if value is None:
        environment.pop("HEDDLE_TRACE_ALWAYS", None)
    said = subprocess.run([sys.executable, "-c", "import heddle; print(heddle.traces_always())"], env=environment,
                          capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(always)


def test_clocks_and_random_numbers():
    """Each call has its own."""
    clock, numbers = time.perf_counter, itertools.count(1)

    def by_clock(score, b, h, q_idx, kv_idx):
        return score * (1 + clock() % 1e-4 * 1e4)

    def by_module(score, b, h, q_idx, kv_idx):
        return score * (1 + time.perf_counter_ns() % 997 / 997)

    def by_count(score, b, h, q_idx, kv_idx):
        return score * next(numbers)

    def by_dropout(score, b, h, q_idx, kv_idx):
        return score * heddle.random_uniform(np.random.randint(1 << 30), b, h, q_idx, kv_idx)

    for mod in (by_clock, by_module, by_count, by_dropout):
        assert len({heddle.attention(Q, K, V, score_mod=mod).tobytes() for _ in range(5)}) > 1, mod.__name__


@pytest.mark.parametrize("other", [types.ModuleType("torch"), types.SimpleNamespace(), None])
def test_another_module_called_torch(other, monkeypatch):
    """As a program's own, or torch while it is being imported."""
    monkeypatch.setitem(sys.modules, "torch", other)
    table = np.ones(2, np.float32)
    assert_right(lambda score, b, h, q_idx, kv_idx: score * table[h] * abs(2.0), lambda x: table.fill(x), (0.5, 2.0))
