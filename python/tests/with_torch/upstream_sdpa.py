"""A pytest plugin that runs torch's own tests of scaled_dot_product_attention on heddle.

All calls lead to heddle, but those where a test allows torch's unfused operations alone, which are its reference.
--sdpa-results=FILE: a line for each test: its outcome, where its calls went, and its error.

    PYTHONPATH=build/release/python:python/tests/with_torch \\
        python -m pytest -p upstream_sdpa PATH/TO/pytorch/test/test_transformers.py
"""

import pytest
import torch
from torch.jit import _builtins
from upstream import Results

import heddle.torch
from heddle.torch import _originals, _take_over


def is_reference():
    kinds = torch.backends.cuda
    return kinds.math_sdp_enabled() and not kinds.flash_sdp_enabled() and not kinds.mem_efficient_sdp_enabled()


def attention(*args, **kwargs):
    if is_reference():
        return _originals.scaled_dot_product_attention(*args, **kwargs)
    return _take_over.sdpa(*args, **kwargs)


_builtins._register_builtin(attention, "aten::scaled_dot_product_attention")


def pytest_addoption(parser):
    parser.addoption("--sdpa-results", metavar="FILE", help="a line for each test: outcome, calls, error")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    heddle.torch.clear_log()
    try:
        with heddle.torch.enabled(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
            if hasattr(item.module, "scaled_dot_product_attention"):
                patch.setattr(item.module, "scaled_dot_product_attention", attention)
            return (yield)
    finally:
        calls = [(entry.function, entry.where, entry.count) for entry in heddle.torch.log()]
        item.user_properties.append(("calls", str(calls)))


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if config.getoption("--sdpa-results"):
        config.pluginmanager.register(Results(config.getoption("--sdpa-results")))
