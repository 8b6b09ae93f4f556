"""An attention call as data: all that its results depend on, and where they are written.

The functions that users call fill a Call. Eager code (_eager.py), the operators (_operators.py) and autograd
(_gradients.py) read it. Nothing else is handed on between them, so a new option is a field here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from .. import _core
from .._dtypes import dtype_name
from . import _forms, _private_names
from ._exact import exact, numbers_of_i32

Tensors = dict[str, torch.Tensor]
Numbers = dict[str, float | int | bool]


@lru_cache(maxsize=512)
def parsed(text: str, captures: tuple[tuple[str, tuple[str, int]], ...], params: tuple[tuple[str, str], ...]) -> Any:
    """The expression of a text that reads these captures (name, type, rank) and params (name, type)."""
    return _core.parse(text, dict(captures), dict(params))


CORES = len(os.sched_getaffinity(0))


def threads_of_torch() -> int:
    """The threads of a call on the CPU: those of torch.set_num_threads, 0 (all cores) if they are as many as the cores."""
    threads = torch.get_num_threads()
    return threads if threads < CORES else 0


def type_of(number: Any) -> str:
    """The type of a param of this value."""
    if isinstance(number, bool):
        return "bool"
    return "f32" if isinstance(number, (float, torch.SymFloat)) else "i32"


def setting(schema: str) -> Any:
    """A field for a number that is an option of heddle.attention by the same name. None: it is not given.
    `schema`: its type among the operators' arguments."""
    return field(default=None, metadata={"schema": schema})


class TracedLists(NamedTuple):
    """Block lists that torch traces: nobody knows their content yet, so the operators alone take them."""

    tensors: list[torch.Tensor]
    sizes: tuple[int, ...]


@dataclass(slots=True)
class Call:
    """One attention. Mods are expressions, or text in the names of `captures` and `params`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float | None = setting("float?")
    max_q_len: int | None = setting("SymInt?")
    max_kv_len: int | None = setting("SymInt?")
    batch_invariant: bool | None = setting("bool?")
    allow_tf32: bool | None = setting("bool?")
    score: Any = None
    mask: Any = None
    weight: Any = None
    captures: Tensors = field(default_factory=dict)
    params: Numbers = field(default_factory=dict)
    options: Tensors = field(default_factory=dict)  # options that are tensors, by their names in heddle.attention
    lists: Any = None  # a heddle.BlockMask of lists, or TracedLists
    version: int = 0  # changes with the content of tensors on a GPU that the mask reads
    clamps: bool = False  # whether reads outside of captures get the nearest element
    with_lse: bool = False
    # The tensors that results are written to. None: a new one is made if it is needed.
    out: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    max_scores: torch.Tensor | None = None  # written if it is given
    lse_rest: torch.Tensor | None = None  # likewise: what lse's rounding leaves out

    def set_dropout(self, p: float) -> None:
        """Weights are 0 with probability p. The seed is a tensor on the device: each replay of a graph draws another."""
        if p == 1.0:  # every weight is dropped, and 1 / (1 - p) is no number
            self.weight = "0.0"
            return
        self.weight = _forms.DROPOUT
        self.params["dropout_p"] = float(p)
        self.captures["dropout_seed"] = torch.randint(0, 2**31 - 1, (), device=self.query.device)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors that are read: query, key, value, captures, options. Gradients come in this order."""
        return self.query, self.key, self.value, *self.captures.values(), *self.options.values()

    def changed(self, **others: Any) -> Call:
        """A copy with other values of these fields. (dataclasses.replace takes 3 us longer.)"""
        made = Call(*values_of(self))
        for name, value in others.items():
            setattr(made, name, value)
        return made

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Call:
        """The call on other tensors, in the order of tensors()."""
        rest = iter(tensors[3:])
        return self.changed(query=tensors[0], key=tensors[1], value=tensors[2],
                            captures=dict(zip(self.captures, rest)), options=dict(zip(self.options, rest)))

    def without_tensors(self) -> Call:
        """The call for with_tensors(). It keeps no tensor alive."""
        return self.changed(query=None, key=None, value=None, captures=dict.fromkeys(self.captures),
                            options=dict.fromkeys(self.options), out=None, lse=None, max_scores=None, lse_rest=None)

    def expression(self, mod: Any) -> Any:
        if not isinstance(mod, str):
            return mod
        captures = tuple([(name, (dtype_name(x), x.dim())) for name, x in self.captures.items()])
        return parsed(mod, captures, tuple([(name, type_of(number)) for name, number in self.params.items()]))

    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries and keys: positions are below, whatever the options say."""
        batch, heads, queries = self.query.shape[:3]
        keys = self.key.shape[2]
        if self.options:
            batch = max(batch, queries, *(x.shape[0] for x in self.options.values() if x.dim()))
            keys *= self.key.shape[0]
            if "q_start" in self.options or "kv_start" in self.options:  # of which a GPU's are not known
                queries = keys = queries + 2 * keys
        return batch, heads, queries, keys

    def exact_expression(self, mod: Any) -> Any:
        """expression() with integers of 64 bits."""
        return exact(self.expression(mod), self.sizes(), self.params)

    def listed(self) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        """The block lists on the call's device, and their sizes: queries and keys, of the whole and of a block."""
        if isinstance(self.lists, TracedLists):
            return self.lists
        if self.lists is None:
            return [], ()
        return [torch.from_numpy(x).to(self.query.device) for x in self.lists.to_lists()], (
            *self.lists.shape[-2:], *self.lists.block)

    def arguments(self) -> _core.Arguments:
        """The options as the library takes them, for torch's current stream."""
        made = _core.Arguments()
        if self.score is not None:
            made.score_mod = self.exact_expression(self.score)
        if self.mask is not None:
            made.mask_mod = self.exact_expression(self.mask)
        if self.weight is not None:
            made.weight_mod = self.exact_expression(self.weight)
        if self.captures:
            try:
                made.captures = self.captures
            except TypeError:
                self.refuse_captures()
                raise
        if self.params:
            made.params = numbers_of_i32(self.params)
        for name, tensor in self.options.items():
            try:
                setattr(made, name, tensor)
            except TypeError:
                raise RuntimeError(f"{name} is a tensor of {tensor.layout} on {tensor.device}; tensors of torch.strided on "
                                   f"{self.query.device} are accepted") from None
        for name in SETTINGS:
            number = getattr(self, name)
            if number is not None:
                setattr(made, name, number)
        if self.lists is not None:
            made.block_mask = self.lists._mask
        if self.clamps:
            made.clamp_reads = True
        device = self.query.device
        if device.type == "cpu":
            made.threads = threads_of_torch()
        if device.type == "cuda":
            made.stream = _private_names.stream_of(device.index)
            made.mask_version = self.version
        return made


    def refuse_captures(self) -> None:
        """Raises RuntimeError that names a capture without memory that the library can read, if there is one."""
        device = self.query.device
        for name, x in self.captures.items():
            if x.layout != torch.strided or x.device.type not in ("cpu", device.type):
                raise RuntimeError(f"a mod or a mask reads '{name}', a tensor of {x.layout} on {x.device}; tensors of "
                                   f"torch.strided on {device} are accepted")


values_of = attrgetter(*(one.name for one in fields(Call)))
# The fields that setting() made, and their types among the operators' arguments.
SETTINGS: dict[str, str] = {one.name: one.metadata["schema"] for one in fields(Call) if "schema" in one.metadata}
# The settings that choose a kernel, beside mods, captures, params and tensors.
kernel_settings_of = attrgetter(*(name for name in SETTINGS if name != "scale"), "clamps")
