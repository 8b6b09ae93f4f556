"""Context parallel attention on the GPUs of one host beside one GPU: times, efficiency, rows received.

    torchrun --nproc-per-node 2 bench/context_parallel.py [--repeats 10] [--groups N] [--hosts N] [--only NAME ...]

Efficiency is the time of one GPU / (ranks * slowest rank), forward and backward, both measured in this run. Prints a
line of JSON a case: the goal, the times (median, milliseconds), the exchange alone, the forward over rows that have
come already, how each rank knows where its queries and keys stand, the groups of heads and the largest rows received. Each
case is checked first: the gathered results and gradients are held against those of one GPU. With --hosts the ranks are
dealt to so many hosts, which on one machine are pretended: what the second step costs is then seen beside a run without.
"""

import argparse
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


def timed(call, repeats):
    """The median of milliseconds. All ranks start together."""
    times = []
    for _ in range(repeats + 2):
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:])


def slowest(milliseconds):
    """The largest of all ranks' times."""
    all_times = torch.tensor([milliseconds], device="cuda")
    dist.all_reduce(all_times, dist.ReduceOp.MAX)
    return all_times.item()


def without_exchange(context):
    """The forward of a call whose exchanges have come before."""
    moving_keys = _context_attention.moving_keys
    buffers = [starter().arrived() for starter in moving_keys(context)]
    come = lambda _: [lambda buffer=buffer: _context_exchange.Moving(buffer, None) for buffer in buffers]

    def call():
        _context_attention.moving_keys = come
        try:
            _context_attention.forward(context)
        finally:
            _context_attention.moving_keys = moving_keys

    return call


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


def run(name, repeats, groups, mesh):
    length, heads, kv_heads, mask_of, score_of, goal = CASES[name]
    mask_mod = mask_of(length) if mask_of.__code__.co_argcount == 1 else mask_of
    score_mod = None if score_of is None else score_of(heads)
    mask = heddle.torch.create_block_mask(mask_mod, None, None, length, length, "cuda")
    plan = context_parallel.partition(mask, mesh, exchange_weight=2230.0 * kv_heads / heads)
    q, k, v, d_out = whole_of(length, heads, kv_heads)
    own = [context_parallel.shard(x, plan, 2) for x in (q, k, v, d_out)]
    leaves = [x.requires_grad_() for x in own[:3]]
    kept = {}

    def of_ranks(*given):
        return context_parallel.attention(*given, plan, score_mod=score_mod, enable_gqa=True, head_groups=groups)

    def alone(*given):
        return heddle.torch.flex_attention(*given, score_mod, mask, enable_gqa=True)

    def observed(context, *rest):
        kept["context"] = context
        return forward(context, *rest)

    forward, _context_attention.forward = _context_attention.forward, observed
    both = slowest(timed(lambda: step(of_ranks, leaves, own[3]), repeats))
    _context_attention.forward = forward
    exchange = kept["context"].exchange
    with torch.no_grad():
        forwards = slowest(timed(lambda: of_ranks(*leaves), repeats))
        there = slowest(timed(without_exchange(kept["context"]), repeats))
        moves = lambda: _context_exchange.send_keys(plan.ranks, exchange, own[1], own[2]).arrived()
        moved = slowest(timed(moves, repeats))
    mine = [of_ranks(*leaves).detach(), *(x.grad for x in leaves)]
    groups, ways = kept.pop("context").groups, [None] * plan.size
    dist.all_gather_object(ways, ways_of(exchange))
    del own, q, k, v, d_out
    torch.cuda.empty_cache()
    error, one, one_forward = 0.0, 0.0, 0.0
    for rank in range(dist.get_world_size()):  # one GPU at a time, so that neither heats the other
        if rank == dist.get_rank() and rank == 0:
            q, k, v, d_out = whole_of(length, heads, kv_heads)
            whole = [x.requires_grad_() for x in (q, k, v)]
            one, one_forward = of_one(lambda: step(alone, whole, d_out), lambda: alone(*whole), repeats)
            wanted = [alone(*whole).detach(), *(x.grad for x in whole)]
            rows = plan.positions
            wanted = [x.index_select(2, rows).float() for x in wanted]
            error = max(float((x.float() - y).norm() / y.norm()) for x, y in zip(mine, wanted))
        dist.barrier()
    one, error = slowest(one), slowest(error)
    if dist.get_rank() == 0:
        ranks = plan.size
        most = max(sum(exchange.received), exchange.most_received)
        print(json.dumps({
            "case": name, "goal": goal, "efficiency": round(one / (ranks * both), 3), "one": round(one, 3),
            "slowest": round(both, 3), "forward efficiency": round(one_forward / (ranks * forwards), 3),
            "one forward": round(one_forward, 3),
            "slowest forward": round(forwards, 3), "exchange of keys alone": round(moved, 3),
            "forward without exchange": round(there, 3), "positions": ways, "groups": groups,
            "most rows received": most, "largest relative error": round(error, 5), "ranks": ranks,
            "device": torch.cuda.get_device_name()}), flush=True)


def of_one(both, forward, repeats):
    """Medians of one rank alone, which no other waits for."""
    found = []
    for call, grad in ((both, True), (forward, False)):
        times = []
        for _ in range(repeats + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            with torch.set_grad_enabled(grad):
                call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        found.append(statistics.median(times[2:]))
    return found


def main():
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--repeats", type=int, default=10)
    given.add_argument("--groups", type=int, help="of heads; a divisor of the KV heads of each case")
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
            run(name, arguments.repeats, arguments.groups, mesh)
        except torch.cuda.OutOfMemoryError as error:
            print(json.dumps({"case": name, "error": str(error)[:200]}), flush=True)
        torch.cuda.empty_cache()
    dist.destroy_process_group()


main()
