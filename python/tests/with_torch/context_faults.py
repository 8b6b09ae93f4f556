"""What goes wrong between ranks: disagreement, absence, death, and faults planted in the library."""

import os

import torch
import torch.distributed as dist

import heddle.torch
from context_cases import GROUPS, PAIRS, Problem, compute, plan_of
from heddle.torch import _context_exchange, context_parallel


def disagree(ranks, changes):
    """Computes a problem in which rank r differs from the others by changes[r]."""
    problem = Problem(ranks=ranks)
    for name, value in changes.get(dist.get_rank(), {}).items():
        setattr(problem, name, value)
    return compute(problem)


def call_with(ranks, wrong):
    """Calls attention on a common plan; the last rank's call is wrong in one way."""
    problem = Problem(ranks=ranks)
    plan = plan_of(problem)
    query, key, value = (context_parallel.shard(x, plan, 2) for x in problem.inputs())
    options = {}
    if dist.get_rank() == ranks - 1:
        if wrong == "rows":
            query = query[:, :, 1:]
        elif wrong == "heads":
            query, key, value = (x[:, :1] for x in (query, key, value))
        elif wrong == "dtype":
            query, key, value = (x.float() for x in (query, key, value))
        elif wrong == "mixed dtypes":
            key = key.float()
        elif wrong == "score":
            options["score_mod"] = lambda score, b, h, q, kv: score + 1.0
        elif wrong == "mask":
            options["block_mask"] = lambda b, h, q, kv: kv <= q + 1
        elif wrong == "scale":
            options["scale"] = 0.5
        elif wrong == "gradient":
            key.requires_grad_()
        elif wrong == "untraceable":
            options["score_mod"] = lambda score, b, h, q, kv: score if float(score) > 0 else score
        elif wrong == "depth":
            options["score_mod"] = lambda score, b, h, q, kv: score + deep(q)
        elif wrong == "seed":
            options.update(dropout_p=0.5, dropout_seed=torch.zeros(3))
    if wrong == "seed":
        options.setdefault("dropout_p", 0.5)
    return context_parallel.attention(query, key, value, plan, **options)


def refused_at_once():
    """What partition refuses on the rank that asks, before anything is sent: rank 3 of a group of three."""
    causal = lambda b, h, q, kv: q >= kv
    calls = [lambda: context_parallel.partition(causal, GROUPS[3], q_len=16),
             lambda: context_parallel.partition(causal, [0, 1], q_len=16)]
    found = []
    for call in calls:
        try:
            call()
            found.append("accepted")
        except (ValueError, TypeError) as error:
            found.append(str(error))
    return found


def refused_by_all(ranks):
    """What partition refuses on all ranks alike."""
    causal = lambda b, h, q, kv: q >= kv
    of = lambda length: heddle.torch.create_block_mask(causal, None, None, length, length, "cpu")
    found = []
    for given in ({"block_mask": causal}, {"block_mask": [of(16), of(17)]}, {"block_mask": of(16), "kv_len": 17},
                  {"block_mask": []}, {"block_mask": causal, "q_len": 16, "device": "cuda:0"},
                  {"block_mask": [of(16)], "weights": [1, 2]}, {"block_mask": 3, "q_len": 16},
                  {"q_len": 16, "cu_seqlens": torch.tensor([0, 9])}, {"q_len": 16, "placing": "random"},
                  {"q_len": 16, "checks": "never"}, {"q_len": 16, "host_steps": 3},
                  {"block_mask": of(1)}, {"q_len": 9, "kv_len": 0}):
        try:
            context_parallel.partition(group=GROUPS[ranks], **given)
            found.append("accepted")
        except (ValueError, TypeError) as error:
            found.append(str(error))
    plan = context_parallel.partition([of(16), of(16)], GROUPS[ranks])
    rows = torch.zeros(1, 1, plan.positions.numel(), 4)
    for mask in (None, of(17)):
        try:
            context_parallel.attention(rows, rows, rows, plan, block_mask=mask)
            found.append("accepted")
        except ValueError as error:
            found.append(str(error))
    try:
        context_parallel.ContextCache(1, 1, 8, 4, group=GROUPS[ranks], device="cuda:0")
        found.append("accepted")
    except ValueError as error:
        found.append(str(error))
    return found


def refused_meshes():
    """What partition says of meshes, and how many hosts it finds in those that it takes."""
    from torch.distributed.device_mesh import DeviceMesh

    causal = lambda b, h, q, kv: q >= kv
    found = []
    for processes in ([[[0, 1]], [[2, 3]]], [[1, 0], [3, 2]], [[0, 1]], [[0], [1]], [[0, 1], [2, 3]]):
        mesh = DeviceMesh("cpu", torch.tensor(processes))
        try:
            plan = context_parallel.partition(causal, mesh, q_len=64, chunk=4)
            found.append((plan.size, plan.rank, plan.made.ranks_per_host))
        except ValueError as error:
            found.append(str(error))
    return found


def deep(x):
    """With a sum around it, deeper than an expression may be."""
    for _ in range(999):
        x = x.sin()
    return x


def absent():
    """Rank 0 calls, and rank 1 does not."""
    plan = plan_of(Problem(), PAIRS["late"])
    if dist.get_rank() == 1:
        return None
    return context_parallel.attention(*(context_parallel.shard(x, plan, 2) for x in Problem().inputs()), plan)


def die(other, when):
    """The other one's process ends before, in or after the exchange of a call; rank 0 goes on to the backward."""
    is_last = dist.get_rank() == other
    problem = Problem()
    plan = plan_of(problem, PAIRS[other])
    query, key, value = (context_parallel.shard(x, plan, 2).requires_grad_() for x in problem.inputs())
    if is_last and when == "before":
        os._exit(0)
    if is_last and when == "in":
        _context_exchange.all_to_all = lambda *_: os._exit(0)
    out = context_parallel.attention(query, key, value, plan)
    if is_last:
        os._exit(0)
    out.sum().backward()
    return "went on"


def die_on_hosts():
    """Rank 3 of two hosts of two ends in the first step of an exchange, between hosts."""
    problem = Problem(ranks=4, hosts=2, mask=None)
    plan = plan_of(problem)
    rows = [context_parallel.shard(x, plan, 2) for x in problem.inputs()]
    if dist.get_rank() == 3:
        _context_exchange.all_to_all = lambda *_: os._exit(0)
    return context_parallel.attention(*rows, plan)


def planted(problem, fault):
    """compute() with a fault in it."""
    from heddle.torch import _context_call, _context_groups, _context_own_first, _context_positions

    indices, set_dropout = _context_call.in_global_indices, _context_call.set_dropout
    add_gradients, send_keys = _context_exchange.add_gradients, _context_groups.send_keys
    start_of, all_to_all = _context_positions.start_of, _context_exchange.all_to_all

    def received(moving, exchange, alone):
        return moving.arrived() if alone else moving.arrived()[exchange.others]

    def reversed_rows(ranks, exchange, key, value, alone):
        moving = send_keys(ranks, exchange, key, value, alone)
        rows = received(moving, exchange, alone)
        rows[:] = rows.flip(0)
        return moving

    def a_row_less(ranks, exchange, key, value, alone):
        moving = send_keys(ranks, exchange, key, value, alone)
        received(moving, exchange, alone)[-1:] = 0
        return moving

    def own_queries(self):
        self.gradients.query.copy_(self.d_queries[0])

    merge = _context_own_first.merge

    module, name, replacement = {
        "rows reversed": (_context_groups, "send_keys", reversed_rows),
        "a row too few": (_context_groups, "send_keys", a_row_less),
        "local kv_idx": (_context_call, "in_global_indices",
                         lambda *text: indices(*text).replace("_keys[kv_idx]", "kv_idx")),
        "local q_idx": (_context_call, "in_global_indices",
                        lambda *text: indices(*text).replace("_queries[q_idx]", "q_idx")),
        "heads from 0": (_context_call, "in_global_indices",
                         lambda text, _: indices(text, False)),
        "starts of another rank": (_context_positions, "start_of", lambda rows: start_of(rows) and start_of(rows) - 4),
        "any rows are granules": (_context_positions, "are_granules", lambda positions: True),
        "gradients added twice": (_context_exchange, "add_gradients",
                                  lambda *of: add_gradients(*of) or add_gradients(*of)),
        "own gradients alone": (_context_exchange, "add_gradients", lambda *of: None),
        "crossed rows stay": (_context_exchange, "all_to_all",
                              lambda group, into, counts, *of: all_to_all(group, torch.empty_like(into) if
                                                                          group is plan_of(problem).ranks.rail else into,
                                                                          counts, *of)),
        "sinks in both parts": (_context_own_first.Parts, "without_sinks", lambda self, call: call),
        "dq of own keys alone": (_context_own_first.Backward, "add_queries", own_queries),
        "merged by own lse": (_context_own_first, "merge",
                              lambda own, other, whole: merge(own, other._replace(lse=own.lse), whole)),
        "seed by rank": (_context_call, "set_dropout",
                         lambda call, p, seed: set_dropout(call, p, seed + dist.get_rank())),
    }[fault]
    original = getattr(module, name)
    setattr(module, name, replacement)
    try:
        return compute(problem)
    finally:
        setattr(module, name, original)
