"""The criterion, merged states, devices."""

import numpy as np
import pytest

import heddle
from inputs import inputs


def test_right_and_wrong_results():
    q, k, v = inputs()
    o, lse = heddle.attention(q, k, v, return_lse=True)
    report = heddle.check(q, k, v, o, lse)
    assert report and report.passed and report.o.passed and report.lse.passed
    assert 0 < report.o.max_error <= report.o.max_allowed
    wrong = o.copy()
    wrong[1, 2, 3, 4] += 1e-3
    report = heddle.check(q, k, v, wrong, lse)
    assert not report and not report.o.passed and report.lse.passed
    assert report.o.max_error == pytest.approx(1e-3, rel=0.01) and report.o.worst_row > 1
    assert "o" in str(report) and heddle.check(q, k, v, o).lse is None
    wrong[0, 0, 0, 0] = np.nan
    assert heddle.check(q, k, v, wrong).o.mismatched_specials == 1
    assert not heddle.check(q, k, v, o, lse + 1e-3)
    with pytest.raises(ValueError, match="o"):
        heddle.check(q, k, v, o[:, :, 1:])
    with pytest.raises(TypeError, match="o is None"):
        heddle.check(q, k, v, None)


def test_merged_states():
    q, k, v = inputs()
    want, want_lse = heddle.attention(q, k, v, return_lse=True)
    cuts = [0, 3, 3, 11, 17]
    parts = [heddle.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in zip(cuts, cuts[1:])]
    o, lse = heddle.merge_states([p[0] for p in parts], [p[1] for p in parts], return_lse=True)
    np.testing.assert_allclose(o, want, atol=1e-6)
    np.testing.assert_allclose(lse, want_lse, atol=1e-6)
    into = np.empty_like(o, dtype=np.float64), np.empty_like(lse)
    got = heddle.merge_states(*zip(*parts), out=into[0], lse=into[1], return_lse=True)
    assert got[0] is into[0] and got[1] is into[1]
    np.testing.assert_allclose(into[0], want, atol=1e-6)
    with pytest.raises(ValueError, match="o_parts is empty"):
        heddle.merge_states([], [])
    with pytest.raises(ValueError, match="lse_parts|parts"):
        heddle.merge_states([o], [])
    with pytest.raises(TypeError, match=r"o_parts\[1\] is 3"):
        heddle.merge_states([o, 3], [lse, lse])


def test_devices():
    devices = heddle.devices()
    assert devices[0].kind == "cpu" and devices[0].memory_bytes > 0 and devices[0].name in repr(devices[0])
    assert heddle.missing("cpu") == ""
    assert bool(heddle.missing("cuda")) == all(device.kind != "cuda" for device in devices)
    with pytest.raises(ValueError, match="device is 'tpu'"):
        heddle.missing("tpu")


def test_config(monkeypatch, tmp_path):
    monkeypatch.setenv("HEDDLE_CACHE_DIR", str(tmp_path))
    (tmp_path / f"{'0' * 32}.kernel").touch()
    found = heddle.config()
    assert found.version == heddle.__version__ and found.module.endswith(".so")
    assert found.cache_folder == str(tmp_path) and found.cached_kernels == 1
    assert [device.kind for device in found.devices] == [device.kind for device in heddle.devices()]
    assert found.missing == {kind: why for kind in ("cuda", "rocm") if (why := heddle.missing(kind))}
    assert found.environment["HEDDLE_CACHE_DIR"] == str(tmp_path) and found.plan_cache == heddle.plan_cache_counts()
    for part in (found.version, found.devices[0].name, *found.missing.values(), str(tmp_path)):
        assert part in str(found)


@pytest.mark.parametrize("xdg, home, folder", [
    ("/a", "/b", "/a/heddle"), ("relative", "/b", "/b/.cache/heddle"), (None, "/b", "/b/.cache/heddle"), (None, "b", None)])
def test_config_where_kernels_are_kept(monkeypatch, xdg, home, folder):
    monkeypatch.delenv("HEDDLE_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False) if xdg is None else monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert heddle.config().cache_folder == folder
