"""How long a call takes on the device. Samples are interleaved: a change of the clock meets all."""

import random
import statistics
import time

SAMPLE_MS = 10.0  # of work in one sample
MOST_CALLS = 50
SUSTAINED_MS = 300.0
FLUSHED_BYTES = 256 << 20  # several times L2
COVERED_MS = 0.04  # of the host's work, while the device zeroes so much


class GpuClock:
    """CUDA events around each call. Before it a buffer larger than L2 is zeroed, as triton.testing.do_bench does it:
    operands come from memory, and the chip does not sink to the clock of endless tensor work."""

    sample_ms, most_calls = SAMPLE_MS, MOST_CALLS

    def __init__(self, torch):
        self.torch = torch
        self.flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def synchronize(self):
        self.torch.cuda.synchronize()

    def milliseconds(self, call, count, host_ms=0.0):
        """The median of `count` calls. `host_ms`: what the host needs to enqueue one; the device waits as long where
        zeroing does not cover it."""
        events = [[self.torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        call()
        for begin, end in events:
            self.flushed.zero_()
            if host_ms > COVERED_MS:
                self.torch.cuda._sleep(int(2e6 * host_ms))  # cycles at about 2 GHz
            begin.record()
            call()
            end.record()
        self.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in events)


class SustainedClock(GpuClock):
    """One pair of CUDA events around calls in a row, nothing flushed between them: what a training step meets, whose
    tensor work never ends. Power then holds the clock down. A quarter as many calls come before, untimed: the contender
    before has left the chip cooler or hotter."""

    sample_ms, most_calls = SUSTAINED_MS, 100000

    def __init__(self, torch):
        self.torch = torch

    def milliseconds(self, call, count, host_ms=0.0):
        """The mean of `count` calls."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(-(-count // 4)):
            call()
        begin.record()
        for _ in range(count):
            call()
        end.record()
        self.synchronize()
        return begin.elapsed_time(end) / count


class HostClock:
    """For trying the program out on a CPU."""

    sample_ms, most_calls = SAMPLE_MS, MOST_CALLS

    def synchronize(self):
        pass

    def milliseconds(self, call, count, host_ms=0.0):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return 1e3 * (time.perf_counter() - begin) / count


def method(sustained):
    if sustained:
        return f"calls in a row for {SUSTAINED_MS / 1000} s, L2 not flushed;"
    return "L2 flushed before each call;"


def clock_of(torch, device, sustained=False):
    return HostClock() if device == "cpu" else SustainedClock(torch) if sustained else GpuClock(torch)


class Timed:
    """One contender's call, with the number of calls that make a sample."""

    def __init__(self, call, clock):
        self.call, self.clock = call, clock
        for _ in range(2):  # compiles; fills caches
            call()
        clock.synchronize()
        begin = time.perf_counter()
        for _ in range(3):
            call()
        host_ms = 1e3 * (time.perf_counter() - begin) / 3
        clock.synchronize()
        self.host_ms = host_ms
        ms = clock.milliseconds(call, 3, host_ms)
        self.host_bound = isinstance(clock, GpuClock) and host_ms > 0.7 * ms
        self.count = max(1, min(clock.most_calls, int(clock.sample_ms / ms)))
        self.samples = []

    def sample(self):
        self.samples.append(self.clock.milliseconds(self.call, self.count, self.host_ms))


def interleave(timed, rounds):
    """Takes `rounds` samples of each of the named calls, each round in another order: what a call reaches depends on how
    hot the one before has left the chip, by up to a tenth. A call that fails is left out from then on. Returns
    {name: exception} of those."""
    failed = {}
    shuffled = random.Random(1)
    for _ in range(rounds):
        names = [name for name in timed if name not in failed]
        shuffled.shuffle(names)
        for name in names:
            try:
                timed[name].sample()
            except Exception as error:  # one contender's failure is its own
                failed[name] = error
    return failed
