"""Skips this folder where torch is not installed."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*.py"]
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]  # agreement.py, device_inputs.py; ways_to_state


def pytest_report_header():
    if collect_ignore_glob:
        return "heddle.torch is not tested: torch is not installed"
    import torch

    return f"torch {torch.__version__}"


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory):
    """This process's own folder of compiled kernels: the library asks once where it is, before its first kernel."""
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEDDLE_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="session")
def pool():
    """Processes of context_ranks.py, by their number: they stay, and are made anew once one has died."""
    from context_ranks import Processes

    kept = {}

    def processes(size):
        if size in kept and not kept[size].are_alive():
            kept.pop(size).close()
        if size not in kept:
            kept[size] = Processes(size)
        return kept[size]

    yield processes
    for one in kept.values():
        one.close()


@pytest.fixture
def ranks(pool):
    from context_judge import MOST

    return pool(MOST)


@pytest.fixture(autouse=True)
def own_draws(request):
    """A test draws the same numbers in whatever order tests run, and on however many workers."""
    generator = getattr(request.module, "GENERATOR", None)
    if generator is not None:
        generator.manual_seed(generator.initial_seed())


@pytest.fixture
def no_grad():
    import torch

    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def walks(monkeypatch):
    """Counts what C++ did not do: walks over mods, and calls that Python's checks made."""
    from heddle.torch import _flex, _sdpa
    from heddle.torch._tracing import kept

    counted = types.SimpleNamespace(mods=0, calls=0)

    class Counting(kept.Reached):
        __slots__ = ()

        def __init__(self, *args, **kwargs):
            counted.mods += 1
            super().__init__(*args, **kwargs)

    def counting(function):
        def call(*args):
            counted.calls += 1
            return function(*args)

        return call

    monkeypatch.setattr(kept, "Reached", Counting)
    monkeypatch.setattr(_flex, "checked", counting(_flex.checked))
    monkeypatch.setattr(_sdpa, "check", counting(_sdpa.check))
    return counted
