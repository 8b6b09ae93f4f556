"""heddle.progress: what is shown, by whom, and when it ends."""

import sys
import types

import numpy as np
import pytest

import heddle

LONG = np.zeros((1, 16, 1536, 64), np.float32)  # some 200 ms of a mod that costs


def attend(threads=1):
    return heddle.attention(LONG, LONG, LONG, score_mod="sin(score + f32(q_idx)) + cos(f32(kv_idx))", threads=threads)


def test_fractions_rise():
    heard = []
    with heddle.progress(heard.append):
        attend()
    assert heard == sorted(heard) and heard and 0 < heard[0] and heard[-1] <= 1
    count = len(heard)
    attend()
    assert len(heard) == count


@pytest.mark.parametrize("error", [KeyError, ValueError])  # a ValueError of the library's has a call look at its arrays
def test_an_exception_ends_the_call(error):
    heard = []

    def stop(fraction):
        heard.append(fraction)
        raise error("enough")

    with heddle.progress(stop), pytest.raises(error, match="enough"):
        attend()
    assert heard == sorted(heard)
    assert np.isfinite(attend()).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_listener_may_call_heddle(threads):
    """Long calls, too: they are not heard, so nothing recurs."""
    heard, within = [], []

    def listen(fraction):
        heard.append(fraction)
        if len(heard) <= 2:
            within.append(attend(threads))
        heddle.clear_plan_cache()

    alone = attend(threads)
    with heddle.progress(listen):
        result = attend(threads)
    assert heard == sorted(heard) and 1 <= len(within) <= 2
    for one in (result, *within, attend(threads)):
        assert np.array_equal(one, alone)


def test_a_listener_may_fail_within_heddle():
    def listen(fraction):
        heddle.attention(LONG, LONG, LONG, mask_mod="q_idx >=")

    with heddle.progress(listen), pytest.raises(ValueError, match="q_idx >="):
        attend()
    assert np.isfinite(attend()).all()


def test_a_listener_may_turn_itself_off():
    with heddle.progress(lambda fraction: heddle._core.set_progress(None)):
        attend()


@pytest.mark.parametrize("threads", [1, 2])
def test_an_exception_ends_a_backward(threads):
    out = heddle.attention(LONG, LONG, LONG, return_lse=True, threads=threads)

    def stop(fraction):
        raise KeyError("enough")

    def backward():
        mods = {"score_mod": "sin(score + f32(q_idx)) + cos(f32(kv_idx))"}
        return heddle.attention_backward(LONG, LONG, LONG, *out, LONG, threads=threads, **mods)

    with heddle.progress(stop), pytest.raises(KeyError, match="enough"):
        backward()
    assert np.isfinite(backward().dk).all()


def test_the_inner_one_counts():
    outer, inner = [], []
    with heddle.progress(outer.append):
        with heddle.progress(inner.append):
            attend()
        assert inner and not outer
        attend()
    assert outer


def test_by_tqdm(monkeypatch):
    events = []

    class Bar:
        def __init__(self, total, **_):
            events.append(("total", total))

        def update(self, more):
            events.append(("more", more))

        def close(self):
            events.append(("close", None))

    module = types.ModuleType("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    with heddle.progress():
        attend()
    assert events[0] == ("total", 100) and events[-1] == ("close", None)
    shown = sum(more for kind, more in events if kind == "more")
    assert 0 < shown <= 100


def test_without_tqdm(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with heddle.progress():
        attend()
    shown = capsys.readouterr().err
    assert "heddle: " in shown and shown.endswith("\n")


def test_short_calls_show_nothing(capsys):
    x = np.ones((1, 1, 4, 8), np.float32)
    with heddle.progress():
        heddle.attention(x, x, x)
    assert capsys.readouterr().err == ""
