"""Problems of context parallel attention, and what a rank does with them. Runs in each process of context_ranks.py, and
in the test's own, where the same problem is computed whole."""

import dataclasses

import torch
import torch.distributed as dist

import heddle.torch
from heddle.torch import AuxRequest, context_parallel

DEVICE = "cpu"  # of this process's tensors; a GPU of its own in the ranks of HEDDLE_TEST_DEVICE=cuda
GROUPS = {}  # of the first n ranks; under (hosts, ranks of each) a DeviceMesh of all
PAIRS = {}  # of rank 0 and rank n; "late": of 0 and 1, which wait for each other for three seconds only


@dataclasses.dataclass
class Problem:
    ranks: int = 2
    hosts: int = 1
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
                self.draw(5, self.batch, self.heads, self.q_len, dtype=torch.promote_types(self.dtype, torch.float32)))

    def learned(self):
        """What score_mod reads, and sinks, all of which have gradients."""
        real = torch.promote_types(self.dtype, torch.float32)
        tables = {"slopes": self.draw(6, self.heads, dtype=real),
                  "bias": self.draw(7, self.heads, self.q_len, self.kv_len, dtype=real),
                  "table": self.draw(8, 2 * max(self.q_len, self.kv_len), dtype=real)}
        read = {"alibi": ["slopes"], "bias": ["bias"], "distance": ["table"]}
        chosen = {name: tables[name] for name in read.get(self.score, [])}
        if self.sinks:
            chosen["sinks"] = self.draw(9, self.heads, dtype=real)
        return {name: x.requires_grad_() for name, x in chosen.items()}


def score_of(problem, learned):
    if problem.score is None:
        return None
    if problem.score == "alibi":
        slopes = learned["slopes"]
        return lambda score, b, h, q, kv: score + slopes[h] * (kv - q)
    if problem.score == "far":
        return lambda score, b, h, q, kv: score + 1e5 + 0.01 * (kv - q)
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
    steps = {"host_steps": 2} if problem.hosts > 1 else {}
    arguments = {"chunk": 4, "device": DEVICE, **steps, **arguments, **problem.plan}
    if group is None:
        group = GROUPS[problem.ranks if problem.hosts == 1 else (problem.hosts, problem.ranks // problem.hosts)]
    return context_parallel.partition(mask, group, **arguments)


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
            "crossed": 0 if plan.masks[0][1].crossing is None else sum(plan.masks[0][1].crossing.received),
            "starts": tuple(rows.start for rows in plan.masks[0][1].rows),
            "granules": tuple(rows.granules is not None for rows in plan.masks[0][1].rows),
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


def explained(problem):
    return plan_of(problem).explain(row_bytes=10)


def steps_taken(problem):
    """Whether rows of few bytes, and of many, travel in one step, and what explain() says of them."""
    plan = plan_of(problem)
    return [(plan.masks[0][1].of_rows(row).crossing is None, plan.explain(row_bytes=row)) for row in (10, 1 << 24)]


def turns(problem):
    """What happens one after the other in compute()'s attention and its backward."""
    from heddle import _core
    from heddle.torch import _context_exchange, _context_groups, _context_own_first, _eager

    made = []

    def noting(name, function):
        def call(*args, **kwargs):
            made.append(name)
            return function(*args, **kwargs)

        return call

    class Core:
        """_core as _context_groups sees it."""

        attention_backward = staticmethod(noting("attend back", _core.attention_backward))

        def __getattr__(self, name):
            return getattr(_core, name)

    patched = [(_context_groups, "send_keys", noting("send", _context_groups.send_keys)),
               (_context_groups.Ahead, "arrived", noting("arrived", _context_groups.Ahead.arrived)),
               (_eager, "run", noting("attend", _eager.run)), (_context_groups, "_core", Core()),
               (_context_own_first, "Returning", noting("return", _context_own_first.Returning)),
               (_context_exchange, "add_gradients", noting("add", _context_exchange.add_gradients))]
    originals = [(module, name, getattr(module, name)) for module, name, _ in patched]
    for module, name, replacement in patched:
        setattr(module, name, replacement)
    try:
        compute(problem)
    finally:
        for module, name, original in originals:
            setattr(module, name, original)
    return made


def poisoned(problem):
    """compute() where keys and values that no query reads are NaN."""
    plan = plan_of(problem)
    query, key, value = problem.inputs()
    key[:, :, problem.kv_len // 2:] = value[:, :, problem.kv_len // 2:] = torch.nan
    leaves = [context_parallel.shard(x, plan, 2).requires_grad_() for x in (query, key, value)]
    made = attended(problem, plan, *leaves, {})
    gradients = gradients_of(made, leaves, *(context_parallel.shard(x, plan, 2) for x in problem.incoming()))
    return {"out": made[0].detach(), "d_query": gradients[0]}


def of_several_masks(problem):
    """compute() of a plan for several masks: under each of them, and under one that the plan does not know."""
    of = lambda name: mask_of(dataclasses.replace(problem, mask=name))
    masks = [heddle.torch.create_block_mask(of(name), None, None, problem.q_len, problem.kv_len, DEVICE)
             for name in ("causal", "window", "prefix")]
    plan = context_parallel.partition(masks[:2], GROUPS[problem.ranks], weights=[1, 3], chunk=4, checks="first")
    rows = [context_parallel.shard(x, plan, 2) for x in problem.inputs()]
    found = [context_parallel.attention(*rows, plan, block_mask=mask) for mask in (*masks, *masks)]
    for _ in range(20):  # each of them a mask of its own
        context_parallel.attention(*rows, plan, block_mask=of("window"))
    return plan.positions, found, len(plan.later)


def through_rows(ranks):
    """shard and unshard, both ways."""
    plan = plan_of(Problem(ranks=ranks, q_len=19, kv_len=31))
    rank, made = dist.get_rank(), []
    for dim, length, of_keys in ((1, 19, False), (-1, 31, None), (0, 19, None)):
        shape = [3, 4, 5]
        shape[dim] = length
        whole = Problem().draw(rank, *shape).float().requires_grad_()  # another one on each rank
        own = context_parallel.shard(whole, plan, dim, of_keys=of_keys)
        again = context_parallel.unshard(own, plan, dim, of_keys=of_keys)
        (gradient,) = torch.autograd.grad((again * (1 + rank)).sum(), whole)
        made.append((whole.detach(), again.detach(), gradient))
    flags = torch.arange(19) % 3 == 0
    assert torch.equal(context_parallel.unshard(context_parallel.shard(flags, plan, 0), plan, 0), flags)
    return plan.positions, plan.kv_positions, made


def prepared(problem):
    """compute() with the plans made before the exchange, as on a GPU, and how many calls planned."""
    from heddle.torch import _context_attention

    _context_attention.ASKED_ON.add("cpu")
    try:
        _context_attention._prepared.clear()
        made = [compute(problem) for _ in range(2)]
        return made[1], len(_context_attention._prepared)
    finally:
        _context_attention.ASKED_ON.discard("cpu")
