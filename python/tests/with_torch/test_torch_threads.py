"""Calls on the CPU run on as many threads as torch.set_num_threads says, so that ranks and workers share a machine."""

import os
import subprocess
import sys

import pytest
import torch

from heddle.torch._call import CORES, Call, threads_of_torch

STARTED = """
import os, torch
from heddle.torch import flex_attention, scaled_dot_product_attention, varlen_attn

x, starts = torch.randn(2, 4, 300, 32), torch.tensor([0, 300], dtype=torch.int32)
rows = x[0].transpose(0, 1).contiguous()
torch.set_num_threads(1)  # torch starts threads of its own at the first number, if any

def all_calls():
    for grad in (False, True):
        q, packed = x.clone().requires_grad_(grad), rows.clone().requires_grad_(grad)
        for _ in range(2):  # the second is recognised
            for out in (flex_attention(q, q, q), scaled_dot_product_attention(q, q, q, dropout_p=0.5),
                        varlen_attn(packed, packed, packed, starts, starts, 300, 300)):
                if grad:
                    out.sum().backward()

before = len(os.listdir("/proc/self/task"))
all_calls()
one = len(os.listdir("/proc/self/task")) - before
torch.set_num_threads(2)
before = len(os.listdir("/proc/self/task"))
flex_attention(x, x, x)
print(one, len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(CORES < 2, reason="one core has one thread")
def test_threads_that_calls_start():
    ended = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=120,
                           env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr[-500:]
    started_by_one, started_by_two = map(int, ended.stdout.split())
    assert started_by_one == 0
    assert started_by_two >= 1


def test_the_number():
    before, x = torch.get_num_threads(), torch.randn(1, 2, 9, 8)
    try:
        for number in (1, CORES, CORES + 3):
            torch.set_num_threads(number)
            wanted = number if number < CORES else 0
            assert threads_of_torch() == Call(x, x, x).arguments().threads == wanted
    finally:
        torch.set_num_threads(before)
