"""Which models of transformers run on heddle, and which form of mask they take: what heddle.hf asks when a model loads.

transformers asks nobody whether a model calls a registered attention. A model that computes its attention itself would
be given a mask that it does not know, or none. So such a model is refused by name, as transformers refuses it for
flex_attention; a model that changes its mask on the way to attention gets a dense one.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any, NamedTuple

# Models that take block masks, though transformers does not say so (_supports_flex_attn); and models that do not,
# though it says so: Doge drops the causal mask beside a BlockMask.
TAKE_BLOCK_MASKS = frozenset((
    "aria_text", "bamba", "codegen", "cohere_compass_text", "falcon_h1", "gpt2", "gpt_bigcode", "gptj", "inkling2_text",
    "inkling2_loop_text", "jamba", "lara_mini", "mimo_v2_flash", "olmo_hybrid", "olmoe", "persimmon", "qwen3_next",
    "qwen3_5_text", "qwen3_5_moe_text", "stablelm"))
NEED_DENSE_MASKS = frozenset({"doge"})
OWN_CLASSES = re.compile(r"_CLASSES\[[\w.]*config\._attn_implementation\]")
_names: set[str] = set()


class Masks(NamedTuple):
    """The forms of mask that the models of a config take beside a float one."""

    blocks: bool
    bools: bool


_masks: dict[type, Masks] = {}  # by the config's class, of all models that were loaded with it


def check_models(name: str) -> None:
    """From now on a model that is loaded with attn_implementation=name is checked."""
    from transformers import PreTrainedModel

    _names.add(name)
    original = PreTrainedModel.get_correct_attn_implementation
    if hasattr(original, "asks_heddle"):
        return

    @functools.wraps(original)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        implementation = original(self, *args, **kwargs)
        if str(implementation).removeprefix("paged|") in _names:
            learn(self, str(implementation))
        return implementation

    checked.asks_heddle = True  # type: ignore[attr-defined]
    setattr(PreTrainedModel, original.__name__, checked)


def learn(model: Any, implementation: str) -> None:
    """Notes the masks that the model takes. Raises ValueError for one that computes its attention itself."""
    kind = type(model)
    reason = reason_against(kind)
    if reason:
        raise ValueError(f"{kind.__name__} does not support attn_implementation='{implementation}': {reason}. Load it "
                         "with attn_implementation='eager'")
    model_type = model.config.model_type
    blocks = (kind._supports_flex_attn or model_type in TAKE_BLOCK_MASKS) and model_type not in NEED_DENSE_MASKS
    before = _masks.get(type(model.config), Masks(True, True))
    _masks[type(model.config)] = Masks(before.blocks and blocks, before.bools and kind._supports_sdpa)


def reason_against(kind: Any) -> str:
    """Why a class of models does not run here; empty if it does."""
    if not (kind._supports_attention_backend or kind._supports_flex_attn or kind._can_set_attn_implementation()):
        return "it computes its attention itself, not through transformers' AttentionInterface"
    module = sys.modules.get(kind.__module__)
    try:
        source = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        return ""
    if OWN_CLASSES.search(source):
        return "it has a class for each implementation that it knows"
    return ""


def masks_of(config: Any) -> Masks:
    """The forms of mask that models of this config take. Without a config, or for one whose model was not loaded, the
    float mask alone is sure to be understood."""
    return _masks.get(type(config), Masks(False, False))
