"""Context parallel attention on the GPUs of one host beside one GPU: times, efficiency, rows received.

    torchrun --nproc-per-node 2 bench/context_parallel.py [--rounds 5] [--groups N ...] [--hosts N] [--only NAME ...]
        [--own-first off on]

Efficiency is the time of one GPU / (ranks * slowest rank), forward and backward. Each round times all ranks together,
and then the whole problem on each GPU, all at once, so that GPUs are as warm for the one as for the other; the time of
one GPU is their mean. GPUs of one kind differ, and ranks wait for the slowest: "efficiency beside the slowest" has its
time of the whole problem instead. Several calls stand in a row, as in training, so a GPU does not wait for its host;
"from idle" is one call that starts on an idle GPU. Prints a line of JSON a case and number of groups: the goal, the times (medians of
the rounds, milliseconds), the exchange of keys alone, how each rank knows where its queries and keys stand, and the
most rows that a rank receives. Each case is checked first: results and gradients are held against those of one GPU.
With --hosts the ranks are dealt to so many hosts, which on one machine are pretended: a run without shows what the
second step costs.
"""

import argparse
import itertools
import json
import os
import statistics

import torch
import torch.distributed as dist

import heddle.torch
from heddle.torch import _context_attention, _context_exchange, context_parallel


def causal(b, h, q, kv):
    return q >= kv


def window_of(width):
    return lambda b, h, q, kv: (q >= kv) & (q - kv < width)


def documents(length, median, longest):
    """Ids of documents of log-normal lengths that fill `length`."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.empty(length, dtype=torch.int32)
    at = number = 0
    while at < length:
        size = int(torch.empty(()).log_normal_(generator=generator) * median)
        size = min(max(size, 64), longest, length - at)
        ids[at:at + size] = number
        at, number = at + size, number + 1
    ids = ids.cuda()
    return lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv)


def alibi(heads):
    slopes = 2.0 ** -torch.linspace(1, 8, heads, device="cuda")
    return lambda score, b, h, q, kv: score + slopes[h] * (kv - q)


def softcap(score, b, h, q, kv):
    return 30.0 * torch.tanh(score / 30.0)


# name: length, heads of q and kv, mask, score, goal on two GPUs
CASES = {
    "causal 32k 64/8": (32768, 64, 8, causal, None, 0.95),
    "causal 32k 16/16": (32768, 16, 16, causal, None, 0.90),
    "causal 128k 16/16": (131072, 16, 16, causal, None, 0.98),
    "documents 3k, 128k 64/8": (131072, 64, 8, lambda n: documents(n, 3072, 32768), None, 0.93),
    "documents 8k, 128k 64/8": (131072, 64, 8, lambda n: documents(n, 8192, 65536), None, 0.93),
    # A quarter of the heads: at 64/8 one GPU has no room for a million rows.
    "window 4k, 1M 16/2": (1 << 20, 16, 2, window_of(4096), None, 0.97),
    "causal ALiBi 128k 16/16": (131072, 16, 16, causal, alibi, 0.95),
    "documents 8k, softcap 128k 64/8": (131072, 64, 8, lambda n: documents(n, 8192, 65536), lambda heads: softcap, 0.90),
}
DIM = 128


ROW_OF = 60.0  # milliseconds of calls in a row


def row_of(call, count):
    """Milliseconds of a call, of `count` in a row, behind one that is not timed. All ranks start together."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    torch.cuda.synchronize()
    call()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count


def from_idle(call):
    """Milliseconds of one call on an idle GPU. All ranks start together."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def counts_of(calls):
    """How many of each call stand in a row, the same on all ranks."""
    return {name: max(1, round(ROW_OF / slowest(from_idle(call)))) for name, call in calls.items()}


def over_ranks(milliseconds, how):
    all_times = torch.tensor([milliseconds], device="cuda")
    dist.all_reduce(all_times, how)
    return all_times.item()


def slowest(milliseconds):
    return over_ranks(milliseconds, dist.ReduceOp.MAX)


def mean(milliseconds):
    return over_ranks(milliseconds, dist.ReduceOp.SUM) / dist.get_world_size()


def ways_of(exchange):
    """"granules, piece": of a rank's queries and keys."""
    return ", ".join("piece" if rows.start is not None else "table" if rows.granules is None else "granules"
                     for rows in exchange.rows)


def step(attend, leaves, d_out):
    for x in leaves:
        x.grad = None
    attend(*leaves).backward(d_out)


def whole_of(length, heads, kv_heads):
    torch.manual_seed(0)
    return [torch.randn(1, one, length, DIM, dtype=torch.bfloat16, device="cuda")
            for one in (heads, kv_heads, kv_heads, heads)]


def run(name, rounds, all_groups, all_ways, mesh):
    length, heads, kv_heads, mask_of, score_of, goal = CASES[name]
    mask_mod = mask_of(length) if mask_of.__code__.co_argcount == 1 else mask_of
    score_mod = None if score_of is None else score_of(heads)
    mask = heddle.torch.create_block_mask(mask_mod, None, None, length, length, "cuda")
    plan = context_parallel.partition(mask, mesh, exchange_weight=2230.0 * kv_heads / heads)
    *whole, d_whole = whole_of(length, heads, kv_heads)
    own = [context_parallel.shard(x, plan, 2).requires_grad_() for x in whole]
    d_own = context_parallel.shard(d_whole, plan, 2)
    whole = [x.requires_grad_() for x in whole]

    def alone(*given):
        return heddle.torch.flex_attention(*given, score_mod, mask, enable_gqa=True)

    for groups, own_first in itertools.product(all_groups, all_ways):
        def of_ranks(*given, groups=groups, own_first=own_first):
            return context_parallel.attention(*given, plan, score_mod=score_mod, enable_gqa=True, head_groups=groups,
                                              own_first=own_first)

        context = context_of(lambda: step(of_ranks, own, d_own))
        error = slowest(largest_error(of_ranks, own, d_own, alone, whole, d_whole, plan.positions))
        moves = lambda: _context_exchange.send_keys(plan.ranks, context.exchange, own[1], own[2]).arrived()
        calls = {"ranks": lambda: step(of_ranks, own, d_own), "ranks forward": without_grad(lambda: of_ranks(*own)),
                 "one": lambda: step(alone, whole, d_whole), "one forward": without_grad(lambda: alone(*whole)),
                 "exchange": without_grad(moves)}
        times = medians(calls, rounds)
        report(name, goal, plan, context, times, error)


def medians(calls, rounds):
    """The times of each call, in rounds in which all take turns: of one GPU the mean, else the slowest rank's."""
    counts = counts_of(calls)
    times = {name: [] for name in (*calls, "ranks from idle", "one from idle", "one on the slowest")}
    for _ in range(rounds):
        for name, call in calls.items():
            taken = row_of(call, counts[name])
            times[name].append((mean if name.startswith("one") else slowest)(taken))
            if name == "one":
                times["one on the slowest"].append(slowest(taken))
        for name in ("ranks", "one"):
            times[name + " from idle"].append((mean if name == "one" else slowest)(from_idle(calls[name])))
    return {name: statistics.median(found) for name, found in times.items()}


def report(name, goal, plan, context, times, error):
    ways, exchange, ranks = [None] * plan.size, context.exchange, plan.size
    dist.all_gather_object(ways, ways_of(exchange))
    if dist.get_rank() != 0:
        return
    efficiency = lambda kind: round(times["one" + kind] / (ranks * times["ranks" + kind]), 3)
    beside_slowest = round(times["one on the slowest"] / (ranks * times["ranks"]), 3)
    print(json.dumps({
        "case": name, "goal": goal, "efficiency": efficiency(""), "forward efficiency": efficiency(" forward"),
        "efficiency from idle": efficiency(" from idle"), "efficiency beside the slowest": beside_slowest,
        **{one: round(x, 3) for one, x in times.items()},
        "groups": context.groups, "own first": context.own_first, "positions": ways,
        "most rows received": max(sum(exchange.received), exchange.most_received),
        "largest relative error": round(error, 5), "ranks": ranks, "device": torch.cuda.get_device_name()}), flush=True)


def without_grad(call):
    def called():
        with torch.no_grad():
            return call()

    return called


def context_of(call):
    """What a call computes and exchanges, as the forward has it."""
    kept = {}

    def observed(context, *rest):
        kept["context"] = context
        return forward(context, *rest)

    forward, _context_attention.forward = _context_attention.forward, observed
    try:
        call()
    finally:
        _context_attention.forward = forward
    return kept["context"]


def largest_error(of_ranks, own, d_own, alone, whole, d_whole, positions):
    """Of results and gradients of this rank's rows, relative to those of one GPU."""
    found = []
    for attend, leaves, d_out in ((of_ranks, own, d_own), (alone, whole, d_whole)):
        step(attend, leaves, d_out)
        with torch.no_grad():
            found.append([attend(*leaves), *(x.grad for x in leaves)])
    wanted = (x.index_select(2, positions).float() for x in found[1])
    return max(float((x.float() - y).norm() / y.norm()) for x, y in zip(found[0], wanted))


def main():
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--rounds", type=int, default=5)
    given.add_argument("--groups", type=int, nargs="*", default=[0],
                       help="of heads, each in turn: divisors of the KV heads of each case; 0, the default: predicted")
    given.add_argument("--own-first", nargs="*", choices=("off", "on"), default=["off"], help="each in turn")
    given.add_argument("--hosts", type=int, default=1, help="a divisor of the ranks")
    given.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    arguments = given.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    hosts, ranks = arguments.hosts, dist.get_world_size()
    if hosts < 1 or ranks % hosts:
        given.error(f"--hosts is {hosts}; divisors of the {ranks} ranks are accepted")
    mesh = None if hosts == 1 else dist.init_device_mesh("cuda", (hosts, ranks // hosts))
    for name in arguments.only:
        try:
            run(name, arguments.rounds, [groups or None for groups in arguments.groups],
                [way == "on" for way in arguments.own_first], mesh)
        except torch.cuda.OutOfMemoryError as error:
            print(json.dumps({"case": name, "error": str(error)[:200]}), flush=True)
        torch.cuda.empty_cache()
    dist.destroy_process_group()


main()
