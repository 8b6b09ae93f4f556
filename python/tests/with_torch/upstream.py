"""A pytest plugin that runs torch's own tests of flex_attention on heddle.

Calls that a test compiles run on heddle, not compiled (HEDDLE_UPSTREAM_COMPILES=1: compiled); calls that it does not
compile stay torch's, which is the reference. A test in which heddle hands a call to torch fails by heddle's reason.
--upstream-results=FILE: a line for each test that was run.

    PYTHONPATH=build/release/python:python/tests/with_torch \\
        python -m pytest -p upstream PATH/TO/pytorch/test/inductor/FILE
"""

import functools
import os
import sys

import pytest
import torch

import heddle.torch

COMPILES = "HEDDLE_UPSTREAM_COMPILES" in os.environ
torchs_compile = torch.compile


def compile_on_heddle(model=None, **options):
    if sys._getframe(1).f_globals["__name__"].startswith("torch."):  # eager code compiles a function of its own
        return torchs_compile(model, **options)
    if model is None:
        return functools.partial(compile_on_heddle, **options)
    function = torchs_compile(model, **options) if COMPILES else model

    @functools.wraps(model, assigned=("__name__", "__doc__"), updated=())
    def call(*args, **kwargs):
        with heddle.torch.enabled():
            return function(*args, **kwargs)

    return call


def pytest_addoption(parser):
    parser.addoption("--upstream-results", metavar="FILE", help="a line for each test: outcome, calls, error")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    heddle.torch.clear_log()
    torch._dynamo.reset()
    try:
        result = yield
    finally:
        calls = [(entry.function, entry.where, entry.count) for entry in heddle.torch.log()]
        item.user_properties.append(("calls", str(calls)))
    reasons = sorted({f"{function}: {where}" for function, where, _ in calls if where != "heddle"})
    if reasons:
        raise AssertionError("; ".join(reasons))
    return result


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    torch.compile = compile_on_heddle
    if config.getoption("--upstream-results") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(config.getoption("--upstream-results")))


class Results:
    def __init__(self, path):
        self.path = path

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and not report.failed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        error = "" if not report.failed else crash.message if crash else str(report.longrepr)
        with open(self.path, "a") as file:
            test = report.nodeid.split("::")[-1]
            print(report.outcome, test, f"{report.duration:.1f} s", report.user_properties, repr(error[:800]), file=file)
