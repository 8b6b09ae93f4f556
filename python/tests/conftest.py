"""Backwards are computed by the backend "reference" where no other backend has one on the CPU."""

import numpy as np

from heddle import _core


def reference_unless_given(function):
    def wrapped(inputs, targets, arguments, *others):
        if arguments.backend == "automatic":
            arguments.backend = "reference"
        return function(inputs, targets, arguments, *others)

    return wrapped


def has_backward():
    x, lse = np.zeros((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    targets = _core.Targets()
    targets.q = True
    try:
        _core.attention_backward(_core.BackwardInputs(x, x, x, x, lse, x, None), targets, _core.Arguments())
    except NotImplementedError:
        return False
    return True


if not has_backward():
    for name in ("attention_backward", "explain_backward", "check_backward", "BackwardPlan"):
        setattr(_core, name, reference_unless_given(getattr(_core, name)))
