"""Heddle and its peers on a cell's inputs: each is called with the number of a layer, whose cache it reads."""

import contextlib
import math
import os

from comparison import library as c
from comparison.decode.inputs import SCORE_TEXTS

FAMILIES = ("decode_mma", "forward_mma", "forward_sm90")
OURS = ("heddle", "batch_invariant", "unshared", "apart", *FAMILIES)


class Heddle:
    """One plan, run on the cache of any layer."""

    def __init__(self, inputs, lib, batch_invariant=False, shares=True, apart=0):
        """`apart`: the last columns of queries and of keys stand in tensors of their own."""
        torch, cell = inputs.torch, inputs.cell
        self.inputs, self.lib = inputs, lib
        self.o = torch.full((*inputs.q.shape[:3], cell.v_dim), math.nan, device=inputs.device, dtype=inputs.q.dtype)
        named = {}
        if cell.page:
            named = {"page_table": self._view(inputs.table, "i32"), "kv_lengths": self._view(inputs.lengths, "i32")}
        if cell.prefix and shares:
            self.prefixes = [torch.full((cell.batch,), x, dtype=torch.int32, device=inputs.device) for x in (0, cell.prefix)]
            named["prefix_group"], named["prefix_len"] = (self._view(x, "i32") for x in self.prefixes)
        mask = "kv_idx <= q_idx + kv_len - q_len" if cell.q_len > 1 else None
        if cell.window:
            named["sinks"] = self._view(inputs.sinks, "f32")
            mask = f"kv_len - 1 - kv_idx < {cell.window}"
        if cell.document:
            mask = "ids[b, kv_idx] == ids[b, kv_len - 1]"
        self.captured = {
            name: self._view(x, "i32" if x.dtype == torch.int32 else "f32") for name, x in inputs.captures.items()
        }
        captures = (c.Capture * max(1, len(self.captured)))(
            *(c.Capture(name.encode(), c.ctypes.pointer(x)) for name, x in self.captured.items())
        )
        self.bindings = c.Bindings(captures=captures, capture_count=len(self.captured))
        self.attention = c.AttentionOptions(
            score_mod=SCORE_TEXTS[cell.mod].encode() if cell.mod else None,
            mask_mod=mask.encode() if mask else None,
            max_kv_len=cell.s if cell.page else 0,
            bindings=c.ctypes.pointer(self.bindings),
            batch_invariant=int(batch_invariant),
            fresh_tokens=cell.fresh,
            **{name: c.ctypes.pointer(view) for name, view in named.items()},
        )
        self.kept, self.rests = named, []
        self.tensors = [
            c.attention_tensors(
                self._view(inputs.q, "bf16"), *(self._view(x, cell.kv_dtype) for x in cache), self._view(self.o, "bf16")
            )
            for cache in inputs.caches
        ]
        if apart:
            self._cut(apart)
        self.plan = lib.plan(self.tensors[0], self.attention)
        count = self.plan.workspace_bytes()
        self.workspace = torch.empty(max(count, 1), dtype=torch.uint8, device=inputs.device)
        self.options = c.RunOptions(workspace=self.workspace.data_ptr() if count else None)

    def _cut(self, apart):
        """Copies of the queries and the caches in two tensors each, as engines hold latent attention."""
        inputs, cell = self.inputs, self.inputs.cell
        first = cell.qk_dim - apart

        def parts(x):
            return [x[..., columns].transpose(1, 2).contiguous().transpose(1, 2) for columns in (slice(first), slice(first, None))]

        q, keys = parts(inputs.q), [parts(k) for k, _ in inputs.caches]
        self.copies = q, keys
        self.tensors = [
            c.attention_tensors(self._view(q[0], "bf16"), self._view(k, cell.kv_dtype),
                                self._view(k[..., : cell.v_dim], cell.kv_dtype), self._view(self.o, "bf16"))
            for k, _ in keys
        ]
        self.rests = [self._view(rest, cell.kv_dtype) for _, rest in keys]
        self.q_rest = self._view(q[1], "bf16")
        self.attention.q_rest = c.ctypes.pointer(self.q_rest)
        self.attention.k_rest = c.ctypes.pointer(self.rests[0])

    def _view(self, x, dtype):
        device = "cpu" if self.inputs.device == "cpu" else "cuda"
        return c.tensor(x.data_ptr(), dtype, x.shape, x.stride(), device, x.device.index or 0)

    def __call__(self, layer=0):
        if self.inputs.device != "cpu":
            self.options.stream = self.inputs.torch.cuda.current_stream().cuda_stream
        if self.rests:
            self.options.k_rest = c.ctypes.pointer(self.rests[layer])
        self.plan.run(self.tensors[layer], self.options)
        return self.o


@contextlib.contextmanager
def family(name):
    """Plans take that family alone."""
    before = os.environ.get("HEDDLE_FAMILY")
    os.environ["HEDDLE_FAMILY"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["HEDDLE_FAMILY"]
        else:
            os.environ["HEDDLE_FAMILY"] = before


class Sdpa:
    """A backend of PyTorch's on dense caches."""

    def __init__(self, inputs, backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.inputs, self.kernel, self.backend = inputs, sdpa_kernel, getattr(SDPBackend, backend)

    def __call__(self, layer=0):
        attend = self.inputs.torch.nn.functional.scaled_dot_product_attention
        with self.kernel(self.backend):
            return attend(self.inputs.q, *self.inputs.caches[layer], enable_gqa=True)


class FlashInfer:
    """Its decode on pages, by tensor cores, planned once for a graph. (By "auto" it takes kernels on Hopper that do not
    split a sequence's keys: 115 us for one of 8,192 instead of some 25.)"""

    def __init__(self, inputs):
        import flashinfer

        torch, cell = inputs.torch, inputs.cell
        lengths = inputs.lengths.cpu()
        pages = (lengths + cell.page - 1) // cell.page
        starts = torch.zeros(cell.batch + 1, dtype=torch.int32)
        starts[1:] = pages.cumsum(0)
        last = (lengths - 1) % cell.page + 1
        numbers = torch.cat([row[:count] for row, count in zip(inputs.table.cpu(), pages.tolist())])
        starts, last, numbers = (x.to(inputs.device, torch.int32) for x in (starts, last, numbers))
        self.inputs = inputs
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(256 << 20, dtype=torch.uint8, device=inputs.device),
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            backend="fa2",
            paged_kv_indptr_buffer=starts.clone(),
            paged_kv_indices_buffer=numbers.clone(),
            paged_kv_last_page_len_buffer=last.clone(),
        )
        kinds = {"q_data_type": torch.bfloat16, "kv_data_type": inputs.caches[0][0].dtype}
        self.wrapper.plan(starts, numbers, last, cell.q_heads, cell.kv_heads, cell.qk_dim, cell.page, **kinds)

    def __call__(self, layer=0):
        cache = tuple(x.transpose(1, 2) for x in self.inputs.caches[layer])
        return self.wrapper.run(self.inputs.q[:, :, 0], cache)[:, :, None]


class Cascade:
    """FlashInfer's wrapper of two levels: the shared pages, and each sequence's own."""

    def __init__(self, inputs):
        import flashinfer

        torch, cell = inputs.torch, inputs.cell
        table, shared = inputs.table.cpu(), cell.prefix // cell.page
        own = -(-cell.s // cell.page) - shared
        steps = torch.arange(cell.batch + 1, dtype=torch.int32)
        last = (cell.s - 1) % cell.page + 1
        levels = [
            (torch.tensor([0, cell.batch]), torch.tensor([0, shared]), table[0, :shared], torch.tensor([cell.page])),
            (steps, steps * own, table[:, shared : shared + own].flatten(), torch.full((cell.batch,), last)),
        ]
        arrays = [[x.to(inputs.device, torch.int32).contiguous() for x in array] for array in zip(*levels)]
        self.inputs = inputs
        self.wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(
            2, torch.zeros(256 << 20, dtype=torch.uint8, device=inputs.device), "NHD"
        )
        kinds = {"q_data_type": torch.bfloat16}
        self.wrapper.plan(*arrays, cell.q_heads, cell.kv_heads, cell.qk_dim, cell.page, **kinds)

    def __call__(self, layer=0):
        cache = tuple(x.transpose(1, 2) for x in self.inputs.caches[layer])
        return self.wrapper.run(self.inputs.q[:, :, 0], cache)[:, :, None]


class Read:
    """Reads all keys and values, and adds up their words: a limit by memory, written in Triton."""

    PROGRAM, BLOCK = 4096, 1024  # words of a program, and of one of its loads

    def __init__(self, inputs):
        import triton
        import triton.language as tl

        @triton.jit
        def read(k, v, sums, count, TWO: tl.constexpr, PROGRAM: tl.constexpr, BLOCK: tl.constexpr):
            program = tl.program_id(0).to(tl.int64)
            total = tl.zeros((BLOCK,), tl.int32)
            for i in tl.static_range(0, PROGRAM, BLOCK):
                at = program * PROGRAM + i + tl.arange(0, BLOCK)
                total += tl.load(k + at, at < count, 0)
                if TWO:
                    total += tl.load(v + at, at < count, 0)
            tl.store(sums + program, tl.sum(total))

        self.inputs, self.read, torch = inputs, read, inputs.torch
        self.words = [
            tuple(x.transpose(1, 2).view(torch.uint8).flatten().view(torch.int32) for x in self._tensors(cache))
            for cache in inputs.caches
        ]
        self.count = self.words[0][0].numel()
        self.programs = -(-self.count // self.PROGRAM)
        self.sums = torch.empty(self.programs, device=inputs.device, dtype=torch.int32)

    def _tensors(self, cache):
        return cache[:1] if self.inputs.cell.latent else cache

    def __call__(self, layer=0):
        words = self.words[layer]
        sizes = {"PROGRAM": self.PROGRAM, "BLOCK": self.BLOCK}
        self.read[(self.programs,)](words[0], words[-1], self.sums, self.count, TWO=len(words) > 1, **sizes)


def contenders(inputs, lib, families=FAMILIES):
    """(name, function that makes the contender). `families`: that are measured beside the planner's choice."""
    cell = inputs.cell
    yield "heddle", lambda: Heddle(inputs, lib)
    yield "batch_invariant", lambda: Heddle(inputs, lib, batch_invariant=True)
    if cell.prefix:
        yield "unshared", lambda: Heddle(inputs, lib, shares=False)
    if cell.latent:
        yield "apart", lambda: Heddle(inputs, lib, apart=cell.qk_dim - cell.v_dim)
    if inputs.device == "cpu":
        return
    for name in families:

        def make(name=name):
            with family(name):
                return Heddle(inputs, lib)

        yield name, make
    if cell.window:
        return
    yield "read", lambda: Read(inputs)
    if cell.mod or cell.latent or cell.document or cell.q_len > 1:
        return
    if cell.prefix:
        yield "cascade", lambda: Cascade(inputs)
    elif cell.page:
        if cell.page > 1 and 0 not in cell.lengths:
            yield "flashinfer", lambda: FlashInfer(inputs)
    elif cell.kv_dtype == "bf16":
        yield "cudnn", lambda: Sdpa(inputs, "CUDNN_ATTENTION")
        yield "fa2", lambda: Sdpa(inputs, "FLASH_ATTENTION")
