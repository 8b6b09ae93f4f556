"""The names of torch.nn.attention: one that is not in attention_names.txt is new, and heddle.torch has to learn it.

The table says since which of the tested versions each name is there. A new argument or field is recorded under the
version that brought it, after heddle.torch handles it or refuses it by name.
"""

import inspect
import re
from pathlib import Path

import pytest
import torch
from attention_names import names
from torch.nn.attention import flex_attention as flex
from torch.nn.attention import varlen

import heddle.torch
from heddle.torch import _block_lists, _write_order

OLDEST = "2.11"


def recorded():
    """The names by the version that brought them."""
    text = Path(__file__).with_name("attention_names.txt").read_text().replace("\n    ", " ")
    found = {}
    for line in text.splitlines():
        if version := re.fullmatch(r"# (\d+\.\d+)", line):
            added = found.setdefault(version[1], set())
        elif line and not line.startswith("#"):
            name, _, arguments = line.partition(": ")
            added.update((name, *(f"{name}({argument})" for argument in arguments.split())))
    return found


def release(version):
    return tuple(int(part) for part in version.split(".")[:2])


def test_every_name_is_recorded():
    known = set().union(*recorded().values())
    new = sorted(set(names()) - known)
    assert not new, f"torch {torch.__version__} has names that heddle.torch was not written for: {', '.join(new)}"


def test_no_name_is_gone():
    there = set(names())
    wanted = set().union(*(added for version, added in recorded().items()
                           if release(version) <= release(torch.__version__) and
                           (version == OLDEST or release(version) == release(torch.__version__))))
    assert not wanted - there, f"torch {torch.__version__} lacks {', '.join(sorted(wanted - there))}"


def test_every_field_of_a_block_mask_is_known():
    known = {*_block_lists.LISTS, *_write_order.ESSENTIALS, *_write_order.KNOWN}
    assert {*flex.BlockMask._TENSOR_ATTRS, *flex.BlockMask._CONTEXT_ATTRS} <= known


FUNCTIONS = [
    (flex.flex_attention, heddle.torch.flex_attention),
    (flex.create_block_mask, heddle.torch.create_block_mask),
    (flex.create_mask, heddle.torch.create_mask),
    (flex.and_masks, heddle.torch.and_masks),
    (flex.or_masks, heddle.torch.or_masks),
    (flex.noop_mask, heddle.torch.noop_mask),
    (flex.BlockMask.from_kv_blocks, heddle.torch.BlockMask.from_kv_blocks),
    (flex.BlockMask.__init__, heddle.torch.BlockMask.__init__),
    (varlen.varlen_attn, heddle.torch.varlen_attn),
]


@pytest.mark.parametrize("torchs, ours", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_ours_have_torchs_arguments_in_torchs_order(torchs, ours):
    theirs, mine = (inspect.signature(one).parameters for one in (torchs, ours))
    by_name = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in mine.values())
    assert by_name or set(theirs) <= set(mine)
    positional = [[name for name, one in given.items() if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
                  for given in (theirs, mine)]
    assert positional[1][: len(positional[0])] == positional[0][: len(positional[1])]
