"""Context parallel attention beside torch's other parts: graphs, checkpoints, DTensors, torch's own context
parallel."""

import copy
import dataclasses
import inspect
import pickle

import torch
import torch.distributed as dist

import context_cases
import heddle.torch
from context_cases import GROUPS, Problem, attended, gradients_of, mask_of, plan_of, score_of
from heddle.torch import AuxRequest, context_parallel


def compiled(problems, backend):
    """compute() of each problem, its attention in one compiled graph, which serves each of them: the plans differ."""
    torch._dynamo.reset()
    eager = context_parallel.attention
    made = []
    for problem in problems:
        plan = plan_of(problem)
        learned = problem.learned()
        score_mod = score_of(problem, learned)
        if not made:
            call = torch.compile(
                lambda query, key, value, plan, score_mod, sinks, seed: eager(
                    query.sin(), key, value, plan, score_mod=score_mod, sinks=sinks, enable_gqa=True,
                    return_aux=AuxRequest(lse=True), dropout_p=problem.dropout, dropout_seed=seed,
                    head_groups=problem.options.get("head_groups"),
                    own_first=problem.options.get("own_first", False)),
                fullgraph=True, backend=backend, dynamic=True)
        leaves = [context_parallel.shard(x, plan, 2).requires_grad_() for x in problem.inputs()]
        d_out, d_lse = (context_parallel.shard(x, plan, 2) for x in problem.incoming())
        seed = torch.tensor(3)
        arguments = plan, score_mod, learned.get("sinks"), seed
        with torch._dynamo.config.patch(error_on_recompile=bool(made)):
            out, aux = call(*leaves, *arguments)
        got = [out, aux.lse, *gradients_of((out, aux.lse), (*leaves, *learned.values()), d_out, d_lse)]
        out, aux = eager(leaves[0].sin(), *leaves[1:], plan, score_mod=score_mod, sinks=learned.get("sinks"),
                         enable_gqa=True, return_aux=AuxRequest(lse=True), dropout_p=problem.dropout, dropout_seed=seed)
        want = [out, aux.lse, *gradients_of((out, aux.lse), (*leaves, *learned.values()), d_out, d_lse)]
        made.append([(x.detach(), y.detach()) for x, y in zip(got, want)])
    return made


def refused_in_graphs(problem):
    """What a compiled call refuses, by name."""
    plan = plan_of(problem)
    leaves = [context_parallel.shard(x, plan, 2) for x in problem.inputs()]
    found = {}
    for name, options in {"max_scores": {"return_aux": AuxRequest(max_scores=True)}, "seed": {"dropout_p": 0.5},
                          "mask": {"block_mask": mask_of(dataclasses.replace(problem, mask="window"))}}.items():
        torch._dynamo.reset()
        try:
            torch.compile(context_parallel.attention, fullgraph=True, backend="eager")(*leaves, plan, **options)
            found[name] = "accepted"
        except Exception as error:
            found[name] = str(error)
    # The graph refuses tensors that do not fit the plan when it runs, on each rank.
    other_batch = plan_of(dataclasses.replace(problem, mask="by batch", batch=3))
    elsewhere = plan_of(problem)
    elsewhere.device = torch.device("meta")
    for name, other, given in (("device", elsewhere, leaves), ("batch", other_batch, leaves),
                               ("rows", plan, [leaves[0][:, :, 1:], *leaves[1:]])):
        torch._dynamo.reset()
        try:
            torch.compile(context_parallel.attention, fullgraph=True, backend="eager")(*given, other)
            found[name] = "accepted"
        except Exception as error:
            found[name] = str(error)
    return found


def checkpointed(problem):
    """compute() with and without a checkpoint around the attention and what follows it."""
    plan = plan_of(problem)
    learned = problem.learned()
    made = []
    for wraps in (True, False):
        leaves = [context_parallel.shard(x, plan, 2).requires_grad_() for x in problem.inputs()]

        def block(*tensors):
            out, lse, _ = attended(problem, plan, tensors[0].sin(), *tensors[1:], learned)
            return out.tanh(), lse

        out, lse = torch.utils.checkpoint.checkpoint(block, *leaves, use_reentrant=False) if wraps else block(*leaves)
        d_out, d_lse = (context_parallel.shard(x, plan, 2) for x in problem.incoming())
        made.append([out.detach(), *gradients_of((out, lse), (*leaves, *learned.values()), d_out, d_lse)])
    return made


def of_dtensors(problem):
    """compute() with DTensors on a mesh, and what is refused of them."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = DeviceMesh.from_group(GROUPS[problem.ranks], torch.device(context_cases.DEVICE).type)
    plan = context_parallel.partition(mask_of(problem), mesh, q_len=problem.q_len, chunk=4, device=context_cases.DEVICE)
    whole = problem.inputs()
    plain = [context_parallel.shard(x, plan, 2).requires_grad_() for x in whole]
    leaves = [DTensor.from_local(x.detach().clone(), mesh, [Shard(2)], shape=of.shape, stride=of.stride())
              for x, of in zip(plain, whole)]
    leaves = [x.requires_grad_() for x in leaves]
    out, aux = context_parallel.attention(*leaves, plan, return_aux=AuxRequest(lse=True, max_scores=True))
    assert all(isinstance(x, DTensor) and x.placements == (Shard(2),) and x.shape[2] == problem.q_len
               for x in (out, aux.lse, aux.max_scores))
    want = context_parallel.attention(*plain, plan)
    gradients = torch.autograd.grad(out.to_local().sin().sum(), leaves)
    wanted = torch.autograd.grad(want.sin().sum(), plain)
    assert all(torch.equal(x.to_local(), y) for x, y in zip((out, *gradients), (want, *wanted)))
    refused = []
    replicated = [DTensor.from_local(x, mesh, [Replicate()]) for x in plain]
    for wrong in (replicated, [leaves[0], *plain[1:]]):
        try:
            context_parallel.attention(*wrong, plan)
        except ValueError as error:
            refused.append(str(error))
    return refused


def torchs_context_parallel():
    """torch's own context parallel flex_attention, with heddle in the place of torch's functions and without."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.experimental._context_parallel import _attention, flex_cp_allgather
    from torch.nn.attention import flex_attention as flex

    problem = Problem(q_len=512, dim=16, v_dim=16)
    mesh = DeviceMesh.from_group(GROUPS[2], torch.device(context_cases.DEVICE).type)
    query, key, value = problem.inputs()
    rank = dist.get_rank()
    _attention._cp_options.enable_load_balance = False  # rows stay in their order
    with heddle.torch.enabled():
        heddle.torch.clear_log()
        original = _attention._compiled_create_block_mask
        _attention._compiled_create_block_mask = flex.create_block_mask
        has_blocks = "BLOCK_SIZE" in inspect.signature(_attention._create_cp_block_mask).parameters  # torch 2.15
        mask = _attention._create_cp_block_mask(mask_of(problem), 1, 1, 512, 512, device_mesh=mesh, load_balancer=None,
                                                **({"BLOCK_SIZE": (128, 128)} if has_blocks else {}))
        _attention._compiled_create_block_mask = original
        own = _attention._context_parallel_shard(mesh, [query, key, value], [2, 2, 2])
        own_query, own_key, own_value = own
        whole_key, whole_value = flex_cp_allgather(own_key.contiguous(), own_value.contiguous(), 2,
                                                   mesh.get_group().group_name)
        out = flex.flex_attention(own_query.contiguous(), whole_key, whole_value, block_mask=mask)
        went = {entry.function: entry.where for entry in heddle.torch.log()}
    return rank, out, went


class Holding(torch.nn.Module):
    """A model that keeps its plan."""

    def __init__(self, plan, score):
        super().__init__()
        self.plan, self.score = plan, score

    def forward(self, query, key, value):
        return context_parallel.attention(query, key, value, self.plan, score_mod=self.score)


def long_score(score, b, h, q, kv):
    for _ in range(14):
        score = torch.where(score > 0, score * 0.9 + 0.01 * h, score - 0.01 * (q - kv))
    return score


def long_mask(b, h, q, kv):
    at = 7 * q + kv
    for _ in range(12):
        at = torch.where(at % 3 == 0, at // 3, 2 * at + 1)
    return (at % 2 == 0) & (q >= kv) | (q == kv)


def copied_with_long_mods(length):
    """Positions, and the result over documents of a deep copy of a model whose mods have long texts."""
    mask = heddle.torch.create_block_mask(long_mask, None, None, length, length, "cpu")
    plan = context_parallel.partition(mask, GROUPS[2], cu_seqlens=torch.tensor([0, 11, length]))
    q, k, v = (context_parallel.shard(x, plan, dim=2) for x in Problem(q_len=length).inputs())
    try:
        pickle.dumps(plan)
        refused = "accepted"
    except TypeError as error:
        refused = str(error)
    return plan.positions, copy.deepcopy(Holding(plan, long_score))(q, k, v), refused
