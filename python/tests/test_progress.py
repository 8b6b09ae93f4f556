"""heddle.progress: what is shown, by whom, and when it ends."""

import sys
import types

import numpy as np
import pytest

import heddle

LONG = np.zeros((1, 16, 1536, 64), np.float32)  # some 200 ms of a mod that costs


def attend():
    return heddle.attention(LONG, LONG, LONG, score_mod="sin(score + f32(q_idx)) + cos(f32(kv_idx))", threads=1)


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
