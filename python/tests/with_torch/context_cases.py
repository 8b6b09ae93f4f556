"""Problems of context parallel attention, and what a rank does with them. Runs in each process of context_ranks.py, and
in the test's own, where the same problem is computed whole."""

import dataclasses
import os

import torch
import torch.distributed as dist

import heddle.torch
from heddle.torch import _context_exchange, context_parallel
from heddle.torch import AuxRequest

DEVICE = "cpu"  # of this process's tensors; a GPU of its own in the ranks of HEDDLE_TEST_DEVICE=cuda
GROUPS = {}  # of the first n ranks
PAIRS = {}  # of rank 0 and rank n; "late": of 0 and 1, which wait for each other for three seconds only


@dataclasses.dataclass
class Problem:
    ranks: int = 2
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    q_len: int = 37
    kv_len: int | None = None
    dim: int = 8
    v_dim: int = 8
    dtype: torch.dtype = torch.float64
    mask: str | None = "causal"
    score: str | None = None
    sinks: bool = False
    dropout: float = 0.0
    form: str = "block mask"  # how the mask is given: also "function", "lists", "documents"
    plan: dict = dataclasses.field(default_factory=dict)
    options: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.kv_len = self.q_len if self.kv_len is None else self.kv_len

    def draw(self, seed, *shape, dtype=None):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype or self.dtype).to(DEVICE)

    def inputs(self):
        return (self.draw(1, self.batch, self.heads, self.q_len, self.dim),
                self.draw(2, self.batch, self.kv_heads, self.kv_len, self.dim),
                self.draw(3, self.batch, self.kv_heads, self.kv_len, self.v_dim))

    def incoming(self):
        """The gradients of out and lse."""
        return (self.draw(4, self.batch, self.heads, self.q_len, self.v_dim),
                self.draw(5, self.batch, self.heads, self.q_len, dtype=torch.float64 if self.dtype == torch.float64 else torch.float32))

    def learned(self):
        """What score_mod reads, and sinks, all of which have gradients."""
        real = torch.float64 if self.dtype == torch.float64 else torch.float32
        tables = {"slopes": self.draw(6, self.heads, dtype=real), "bias": self.draw(7, self.heads, self.q_len, self.kv_len, dtype=real),
                  "table": self.draw(8, 2 * max(self.q_len, self.kv_len), dtype=real)}
        read = {"alibi": ["slopes"], "softcap": [], "bias": ["bias"], "distance": ["table"], "by batch": [], None: []}[self.score]
        chosen = {name: tables[name] for name in read}
        if self.sinks:
            chosen["sinks"] = self.draw(9, self.heads, dtype=real)
        return {name: x.requires_grad_() for name, x in chosen.items()}


def score_of(problem, learned):
    if problem.score is None:
        return None
    if problem.score == "alibi":
        slopes = learned["slopes"]
        return lambda score, b, h, q, kv: score + slopes[h] * (kv - q)
    if problem.score == "softcap":
        return lambda score, b, h, q, kv: 5.0 * torch.tanh(score / 5.0)
    if problem.score == "bias":
        bias = learned["bias"]
        return lambda score, b, h, q, kv: score + bias[h, q, kv]
    if problem.score == "by batch":
        return lambda score, b, h, q, kv: score * (1 + b) + 0.25 * q
    table, middle = learned["table"], max(problem.q_len, problem.kv_len)
    return lambda score, b, h, q, kv: score + table[q - kv + middle]


def document_bounds(length):
    bounds = sorted({0, length // 5, length // 2, length // 2 + 3, length})
    return torch.tensor([x for x in bounds if x <= length], dtype=torch.int32, device=DEVICE)


def mask_of(problem):
    q_len, kv_len = problem.q_len, problem.kv_len
    bounds = document_bounds(kv_len)
    documents = torch.repeat_interleave(torch.arange(bounds.numel() - 1, device=DEVICE), bounds.diff().long()).int()
    pattern = (torch.rand(40, generator=torch.Generator().manual_seed(11)) < 0.4).to(DEVICE)
    lengths = torch.tensor([kv_len, kv_len // 2, kv_len // 3], dtype=torch.int32, device=DEVICE)
    return {
        None: None,
        "causal": lambda b, h, q, kv: q >= kv,
        "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 5),
        "documents": lambda b, h, q, kv: (documents[q] == documents[kv]) & (q >= kv),
        "prefix": lambda b, h, q, kv: (q >= kv) | (kv < 6),
        "blocks": lambda b, h, q, kv: pattern[(q // 4 * 7 + kv // 4 * 3) % 40],
        "by batch": lambda b, h, q, kv: (q >= kv) & (kv < lengths[b]),
        "by head": lambda b, h, q, kv: (q - kv).abs() < 3 + 6 * h,
        "nothing for some": lambda b, h, q, kv: (q >= kv) & (q % 3 != 1),
        "unread keys": lambda b, h, q, kv: kv < kv_len // 2,
    }[problem.mask]


def given_mask(problem):
    """The mask as context_parallel.partition takes it, and the arguments beside it."""
    mask_mod = mask_of(problem)
    scope = problem.batch if problem.mask == "by batch" else 1, problem.heads if problem.mask == "by head" else 1
    sizes = {"q_len": problem.q_len, "kv_len": problem.kv_len}
    if problem.form == "documents":  # a causal mask in documents
        return (lambda b, h, q, kv: q >= kv), {**sizes, "cu_seqlens": document_bounds(problem.kv_len)}
    if problem.form == "function" or mask_mod is None:
        return mask_mod, {**sizes, "batch": scope[0], "heads": scope[1]}
    if problem.form == "lists":
        return torch.nn.attention.flex_attention.create_block_mask(
            mask_mod, *scope, problem.q_len, problem.kv_len, DEVICE, BLOCK_SIZE=8), {}
    return heddle.torch.create_block_mask(mask_mod, *scope, problem.q_len, problem.kv_len, DEVICE), {}


def plan_of(problem, group=None):
    mask, arguments = given_mask(problem)
    return context_parallel.partition(mask, GROUPS[problem.ranks] if group is None else group, **{"chunk": 4, "device": DEVICE, **arguments, **problem.plan})


def compute(problem):
    """This rank's results and gradients, and its rows."""
    plan = plan_of(problem)
    query, key, value = problem.inputs()
    query = context_parallel.shard(query, plan, 2, of_keys=False).requires_grad_()
    key, value = (context_parallel.shard(x, plan, 2, of_keys=True).requires_grad_() for x in (key, value))
    learned = problem.learned()
    made = attended(problem, plan, query, key, value, learned)
    d_out, d_lse = (context_parallel.shard(x, plan, 2, of_keys=False) for x in problem.incoming())
    gradients = gradients_of(made, (query, key, value, *learned.values()), d_out, d_lse)
    return {"q": plan.positions, "kv": plan.kv_positions, "out": made[0].detach(), "lse": made[1].detach(),
            "max_scores": made[2], "received": sum(plan.masks[0][1].received),
            **dict(zip(("d_query", "d_key", "d_value", *(f"d_{name}" for name in learned)), gradients))}


def gradients_of(made, leaves, d_out, d_lse):
    out, lse = made[:2]
    loss = (out * d_out).sum() + (torch.where(lse.isfinite(), lse, 0.0) * d_lse).sum()
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(x) if one is None else one for x, one in zip(leaves, found)]


def attended(problem, plan, query, key, value, learned):
    arguments = {"enable_gqa": True, "return_aux": AuxRequest(lse=True, max_scores=True), **problem.options}
    if problem.sinks:
        arguments["sinks"] = learned["sinks"]
    if problem.dropout:
        arguments.update(dropout_p=problem.dropout, dropout_seed=arguments.get("dropout_seed", 17))
    out, aux = context_parallel.attention(query, key, value, plan, score_mod=score_of(problem, learned), **arguments)
    return out, aux.lse, aux.max_scores


# ---- what goes wrong


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
        elif wrong == "seed":
            options.update(dropout_p=0.5, dropout_seed=torch.zeros(3))
    if wrong == "seed":
        options.setdefault("dropout_p", 0.5)
    return context_parallel.attention(query, key, value, plan, **options)


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


def planted(problem, fault):
    """compute() with a fault in it."""
    from heddle.torch import _context_attention, _context_call

    indices, summed, send_keys, set_dropout = (
        _context_call.in_global_indices, _context_attention.summed, _context_attention.send_keys, _context_call.set_dropout)

    def reversed_rows(ranks, exchange, key, value):
        moving = send_keys(ranks, exchange, key, value)
        moving.arrived()[key.shape[2]:] = moving.arrived()[key.shape[2]:].flip(0)
        return moving

    def a_row_less(ranks, exchange, key, value):
        moving = send_keys(ranks, exchange, key, value)
        moving.arrived()[-1:] = 0
        return moving

    module, name, replacement = {
        "rows reversed": (_context_attention, "send_keys", reversed_rows),
        "a row too few": (_context_attention, "send_keys", a_row_less),
        "local kv_idx": (_context_call, "in_global_indices", lambda *text: indices(*text).replace("_keys[kv_idx]", "kv_idx")),
        "local q_idx": (_context_call, "in_global_indices", lambda *text: indices(*text).replace("_queries[q_idx]", "q_idx")),
        "heads from 0": (_context_call, "in_global_indices", lambda text, _: indices(text, False)),
        "gradients added twice": (_context_attention, "summed", lambda *of: 2 * summed(*of) - of[2]),
        "own gradients alone": (_context_attention, "summed", lambda ranks, exchange, own, came: own),
        "seed by rank": (_context_call, "set_dropout", lambda call, p, seed: set_dropout(call, p, seed + dist.get_rank())),
    }[fault]
    original = getattr(module, name)
    setattr(module, name, replacement)
    try:
        return compute(problem)
    finally:
        setattr(module, name, original)


def poisoned(problem):
    """compute() where keys and values that no query reads are NaN."""
    plan = plan_of(problem)
    query, key, value = problem.inputs()
    key[:, :, problem.kv_len // 2:] = value[:, :, problem.kv_len // 2:] = torch.nan
    leaves = [context_parallel.shard(x, plan, 2).requires_grad_() for x in (query, key, value)]
    made = attended(problem, plan, *leaves, {})
    gradients = gradients_of(made, leaves, *(context_parallel.shard(x, plan, 2) for x in problem.incoming()))
    return {"out": made[0].detach(), "d_query": gradients[0]}


# ---- beside torch's other parts


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
                    query.sin(), key, value, plan, score_mod=score_mod, sinks=sinks, enable_gqa=True, return_aux=AuxRequest(lse=True),
                    dropout_p=problem.dropout, dropout_seed=seed, head_groups=problem.options.get("head_groups")),
                fullgraph=True, backend=backend, dynamic=True)
        leaves = [context_parallel.shard(x, plan, 2).requires_grad_() for x in problem.inputs()]
        d_out, d_lse = (context_parallel.shard(x, plan, 2) for x in problem.incoming())
        seed = torch.tensor(3)
        arguments = plan, score_mod, learned.get("sinks"), seed
        with torch._dynamo.config.patch(error_on_recompile=bool(made)):
            out, aux = call(*leaves, *arguments)
        got = [out, aux.lse, *gradients_of((out, aux.lse), (*leaves, *learned.values()), d_out, d_lse)]
        out, aux = eager(leaves[0].sin(), *leaves[1:], plan, score_mod=score_mod, sinks=learned.get("sinks"), enable_gqa=True,
                         return_aux=AuxRequest(lse=True), dropout_p=problem.dropout, dropout_seed=seed)
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

    mesh = DeviceMesh.from_group(GROUPS[problem.ranks], torch.device(DEVICE).type)
    plan = context_parallel.partition(mask_of(problem), mesh, q_len=problem.q_len, chunk=4, device=DEVICE)
    whole = problem.inputs()
    plain = [context_parallel.shard(x, plan, 2).requires_grad_() for x in whole]
    leaves = [DTensor.from_local(x.detach().clone(), mesh, [Shard(2)], shape=of.shape, stride=of.stride()).requires_grad_()
              for x, of in zip(plain, whole)]
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
    mesh = DeviceMesh.from_group(GROUPS[2], torch.device(DEVICE).type)
    query, key, value = problem.inputs()
    rank = dist.get_rank()
    _attention._cp_options.enable_load_balance = False  # rows stay in their order
    with heddle.torch.enabled():
        heddle.torch.clear_log()
        original, _attention._compiled_create_block_mask = _attention._compiled_create_block_mask, flex.create_block_mask
        mask = _attention._create_cp_block_mask(mask_of(problem), 1, 1, 512, 512, mesh, load_balancer=None)
        _attention._compiled_create_block_mask = original
        own = _attention._context_parallel_shard(mesh, [query, key, value], [2, 2, 2])
        own_query, own_key, own_value = own
        whole_key, whole_value = flex_cp_allgather(own_key.contiguous(), own_value.contiguous(), 2, mesh.get_group().group_name)
        out = flex.flex_attention(own_query.contiguous(), whole_key, whole_value, block_mask=mask)
        went = {entry.function: entry.where for entry in heddle.torch.log()}
    return rank, out, went


# ---- decoding


VOCABULARY, WIDTH = 32, 16


def tiny_model(heads, kv_heads, dtype):
    """Weights of a model of one attention: embedding, q, k, v, out."""
    problem = Problem(dtype=dtype)
    share = WIDTH // heads
    return [problem.draw(20 + i, *shape, dtype=dtype) for i, shape in enumerate(
        ((VOCABULARY, WIDTH), (WIDTH, WIDTH), (WIDTH, kv_heads * share), (WIDTH, kv_heads * share), (WIDTH, VOCABULARY)))]


def generated(ranks, dtype, heads=4, kv_heads=2, page=4, prompt=9, steps=14, window=6):
    """Greedy tokens and their logits from a prompt, with a cache over some ranks; 0 ranks: over the whole sequence each
    time, by torch's own operations."""
    embedding, to_q, to_k, to_v, to_logits = tiny_model(heads, kv_heads, dtype)
    tokens = torch.randint(0, VOCABULARY, (2, prompt), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=DEVICE)
    sinks = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=slopes.dtype, device=DEVICE)
    score_mod = lambda score, b, h, q, kv: score - slopes[h] * (q - kv)
    mask_mod = lambda b, h, q, kv: (q - kv < window) | (kv == 0)
    cache = ranks and context_parallel.ContextCache(2, kv_heads, 40, WIDTH // heads, group=GROUPS[ranks], page=page, dtype=dtype, device=DEVICE)
    new, logits = tokens, []
    for _ in range(steps):
        x = embedding[new if ranks else tokens]
        query, key, value = ((x @ weight).unflatten(2, (-1, WIDTH // heads)).transpose(1, 2) for weight in (to_q, to_k, to_v))
        if ranks:
            cache.append(key, value)
            out, aux = cache.attention(query, score_mod=score_mod, mask_mod=mask_mod, sinks=sinks, enable_gqa=True,
                                       return_aux=AuxRequest(lse=True))
        else:
            from gradient_reference import dense
            out, _ = dense(query, key, value, score_mod, lambda b, h, q, kv: (kv <= q) & mask_mod(b, h, q, kv), sinks=sinks)
        logits.append((out.transpose(1, 2).flatten(2)[:, -1] + x[:, -1]) @ to_logits)
        new = logits[-1].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, new), 1)
    return tokens, torch.stack(logits)


def refused_by_cache(ranks):
    """What a cache refuses, by name; the last entry is a call of which one rank's differs."""
    cache = context_parallel.ContextCache(1, 2, 8, 4, group=GROUPS[ranks], page=2, dtype=torch.float64, device=DEVICE, checks="calls")
    rows = lambda n, heads=2: torch.zeros(1, heads, n, 4, dtype=torch.float64, device=DEVICE)
    cache.append(rows(3), rows(3))
    calls = [lambda: cache.append(rows(6), rows(6)), lambda: cache.append(rows(1).float(), rows(1)), lambda: cache.append(rows(2), rows(1)),
             lambda: cache.attention(rows(4)), lambda: cache.attention(rows(1).requires_grad_()),
             lambda: cache.attention(rows(1), scale=1.0 + dist.get_rank())]
    found = []
    for call in calls:
        try:
            call()
            found.append("accepted")
        except (ValueError, NotImplementedError) as error:
            found.append(str(error))
    return found
