"""How long a call takes on the device. Samples are interleaved: a change of the clock meets all."""

import time

SAMPLE_MS = 3.0  # of work in one sample
MOST_CALLS = 200


class GpuClock:
    """CUDA events around several calls in a row."""

    def __init__(self, torch):
        self.torch = torch

    def synchronize(self):
        self.torch.cuda.synchronize()

    def milliseconds(self, call, count, host_ms=0.0):
        """Of one call. `host_ms`: what the host needs to enqueue one, when that is longer than the call itself; the
        device is then kept busy until all of them stand in its queue."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        if host_ms > 0:
            self.torch.cuda._sleep(int(2e6 * host_ms * count))  # cycles at about 2 GHz
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / count


class HostClock:
    """For trying the program out on a CPU."""

    def synchronize(self):
        pass

    def milliseconds(self, call, count, host_ms=0.0):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return 1e3 * (time.perf_counter() - begin) / count


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
        ms = clock.milliseconds(call, 3)
        self.host_ms = host_ms if isinstance(clock, GpuClock) and host_ms > 0.7 * ms else 0.0
        self.count = max(1, min(MOST_CALLS, int(SAMPLE_MS / ms)))
        self.samples = []

    def sample(self):
        self.samples.append(self.clock.milliseconds(self.call, self.count, self.host_ms))


def interleave(timed, rounds):
    """Takes `rounds` samples of each of the named calls in turn; each round starts at another one. A call that fails is
    left out from then on. Returns {name: exception} of those."""
    failed = {}
    for turn in range(rounds):
        names = [name for name in timed if name not in failed]
        if not names:
            break
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            try:
                timed[name].sample()
            except Exception as error:  # one contender's failure is its own
                failed[name] = error
    return failed
