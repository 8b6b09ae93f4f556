"""Every decoder class of transformers that a tiny configuration builds: eager's logits, eager's tokens, eager's masks.

A class that is refused stands in REFUSED; it is refused when it loads, by name. One that no tiny configuration builds
stands in UNBUILT. A class in neither table has to agree.
"""

import ast
import contextlib
import signal
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.0")

from tiny_models import build, class_names  # noqa: E402

import heddle.hf  # noqa: E402
from heddle.torch import _hf_models  # noqa: E402

OWN_ATTENTION = "it computes its attention itself"
OWN_CLASSES = "it has a class for each implementation"
REFUSED = {
    "BigBirdForCausalLM": OWN_ATTENTION,
    "BloomForCausalLM": OWN_ATTENTION,
    "CpmAntForCausalLM": OWN_ATTENTION,
    "FalconForCausalLM": OWN_ATTENTION,
    "GPTNeoForCausalLM": OWN_ATTENTION,
    "GPTNeoXJapaneseForCausalLM": OWN_ATTENTION,
    "GitForCausalLM": OWN_CLASSES,
    "MegatronBertForCausalLM": OWN_ATTENTION,
    "MptForCausalLM": OWN_ATTENTION,
    "MvpForCausalLM": OWN_ATTENTION,
    "OpenAIGPTLMHeadModel": OWN_ATTENTION,
    "ProphetNetForCausalLM": OWN_ATTENTION,
    "ReformerModelWithLMHead": OWN_ATTENTION,
    "RemBertForCausalLM": OWN_ATTENTION,
    "RoFormerForCausalLM": OWN_ATTENTION,
    "RwkvForCausalLM": OWN_ATTENTION,  # it has none, and what transformers says of it is the same
    "TrOCRForCausalLM": OWN_ATTENTION,
    "XGLMForCausalLM": OWN_ATTENTION,
    "XLMWithLMHeadModel": OWN_ATTENTION,
    "XLNetLMHeadModel": OWN_ATTENTION,
}
REFUSED_IN_OLD_VERSIONS = {"CodeGenForCausalLM": OWN_ATTENTION, "GPTJForCausalLM": OWN_ATTENTION}  # transformers 5.17
NO_ATTENTION = {"FalconMambaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "xLSTMForCausalLM"}
# transformers 5.17's eager attention of these loses the causal mask where no attention_mask is given.
EAGER_SEES_THE_FUTURE = {"MoshiForCausalLM"}
UNBUILT = {
    "BailingHybridForCausalLM": "its router chooses more experts than there are",
    "CohereCompassForCausalLM": "transformers 5.17 makes an empty tensor of its layers",
    "DbrxForCausalLM": "its configuration does not read what it writes",
    "DoryForCausalLM": "its layers of each kind come in a fixed number",
    "Dots3NoteForCausalLM": "its layers have configurations of their own",
    "Gemma3nForConditionalGeneration": "its sparsity is a list of the real number of layers",
    "Gemma4AssistantForCausalLM": "it continues another model's cache",
    "Gemma4UnifiedAssistantForCausalLM": "it continues another model's cache",
    "MossTranscribeDiarizeForConditionalGeneration": "it hears sound",
    "Qwen4ExpForCausalLM": "its default configuration lacks its indexer's sizes",
    "ZambaForCausalLM": "its tied weights are named by the real number of layers",
    "xLSTMForCausalLM": "its states do not follow its sizes",
}
SLOW = {
    "BltForCausalLM": "its patcher, encoder and decoder have configurations of their own, of full size",
    "KimiLinearForCausalLM": "its linear attention takes minutes without a kernel",
}
LONGEST = 40  # seconds of a class
calls = 0


def refused(name):
    """The tables of this version."""
    taken = getattr(transformers, name)._can_set_attn_implementation()
    return REFUSED if taken else {**REFUSED, **REFUSED_IN_OLD_VERSIONS}


def counted(*arguments, **options):
    global calls
    calls += 1
    return heddle.hf.attention(*arguments, **options)


@pytest.fixture(scope="module", autouse=True)
def registered():
    heddle.hf.register()
    transformers.AttentionInterface.register("heddle", counted)
    with torch.no_grad():
        yield


@contextlib.contextmanager
def limit(seconds):
    def stop(*_):
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


ROWS = torch.randint(3, 90, (2, 24), generator=torch.Generator().manual_seed(1))
LATER = torch.cat([ROWS[:, :12], ROWS[:, 12:].flip(1)], 1)  # the future of the first 12 differs
PADDING = torch.ones(2, 24, dtype=torch.long)
PADDING[1, -5:] = 0


def logits(model):
    whole, later, padded = (
        model(input_ids=ROWS).logits,
        model(input_ids=LATER).logits,
        model(input_ids=ROWS, attention_mask=PADDING).logits[PADDING.bool()],
    )
    return whole, later, padded


def continued(model):
    """Greedy tokens, whose steps read a cache; None where the model alone does not continue."""
    with contextlib.suppress(Exception):
        return model.generate(input_ids=ROWS, max_new_tokens=3, do_sample=False, eos_token_id=None)
    return None


@pytest.mark.parametrize("name", class_names())
def test_agrees_with_eager_or_is_refused(name):
    global calls
    if name in SLOW:
        pytest.skip(SLOW[name])
    torch.manual_seed(0)
    try:
        with limit(LONGEST):
            eager = build(name, "eager")
            want, tokens = logits(eager), continued(eager)
    except Exception as error:  # noqa: BLE001
        assert name in UNBUILT or name in refused(name), f"no tiny configuration builds it: {type(error).__name__} {error}"
        if name in UNBUILT:
            pytest.skip(f"no tiny configuration: {UNBUILT[name]}")
    sentence = refused(name).get(name)
    if sentence is not None:
        with pytest.raises(ValueError, match=f"^{name} does not support attn_implementation='heddle': {sentence}"):
            build(name, "heddle")
        return
    ours = build(name, "heddle")
    calls = 0
    got = logits(ours)
    assert (calls > 0) == (name not in NO_ATTENTION)
    if name in EAGER_SEES_THE_FUTURE and not torch.equal(want[0][:, :12], want[1][:, :12]):
        want = got[0], got[1], want[2]
    sees_future = [bool((whole[:, :12] - later[:, :12]).abs().max() > 1e-4) for whole, later, _ in (want, got)]
    assert sees_future[0] == sees_future[1]
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    if tokens is not None:
        assert torch.equal(continued(ours), tokens)


# Arguments that models hand to an attention. What changes its result is read or refused by heddle.hf.attention.
READ = {"attention_mask", "scaling", "dropout", "is_causal", "softcap", "s_aux", "sinks", "position_bias", "indices"}
REFUSED_ARGUMENTS = {"output_attentions", "block_indices"}
# The mask says the windows and the packed sequences; flash-attention's own arguments say the same once more.
SAID_BY_THE_MASK = {"sliding_window", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "position_ids"}
WITHOUT_MEANING = {"deterministic", "query", "key", "value"}


def test_every_argument_of_the_models_is_known():
    """The arguments that stand by name in a call of an attention, in the sources of all models."""
    found = {}
    for path in sorted(Path(transformers.__file__).parent.glob("models/*/modeling_*.py")):
        text = path.read_text()
        if "attention_interface" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            called = node.func if isinstance(node, ast.Call) else None
            if (getattr(called, "id", "") or getattr(called, "attr", "")).startswith("attention_interface"):
                found.update({word.arg: path.name for word in node.keywords if word.arg})
    unknown = set(found) - READ - REFUSED_ARGUMENTS - SAID_BY_THE_MASK - WITHOUT_MEANING
    assert not unknown, {name: found[name] for name in unknown}


def test_refusals_when_the_implementation_is_set_later():
    model = build("GPTNeoXJapaneseForCausalLM", "eager")
    model.set_attn_implementation("heddle")  # transformers warns, and leaves it as it is
    assert model.config._attn_implementation == "eager"
    falcon = build("FalconForCausalLM", "eager")
    falcon.set_attn_implementation("heddle")
    assert falcon(input_ids=ROWS).logits.shape == (2, 24, 97)


def test_masks_of_models_that_were_not_loaded_are_dense():
    class Config:
        model_type = "unheard of"

    made = heddle.hf.mask(2, 5, 5, config=Config(), dtype=torch.float32)
    assert made.shape == (2, 1, 5, 5) and made.dtype == torch.float32
    assert torch.equal(made[0, 0] == 0, torch.ones(5, 5).tril().bool())
    assert _hf_models.masks_of(Config()) == (False, False)


def test_no_mask_is_left_out():
    """None stands for 'all keys' alone: a model with an attention of its own may not know another meaning."""
    assert heddle.hf.mask(2, 5, 5) is not None
    assert heddle.hf.mask(2, 1, 5, q_offset=4) is None
    assert heddle.hf.mask(2, 1, 5, q_offset=3) is not None


def test_masks_that_do_not_fit():
    layer, q = torch.nn.Module(), torch.randn(2, 4, 6, 8)
    for wrong, error, sentence in (
        (torch.ones(2, 1, 6, 6, dtype=torch.int64), ValueError, "attention_mask is torch.int64"),
        (torch.ones(2, 1, 7, 6, dtype=torch.bool), RuntimeError, "shape"),
        (torch.ones(3, 1, 6, 6, dtype=torch.bool), RuntimeError, "shape"),
    ):
        with pytest.raises(error, match=sentence):
            heddle.hf.attention(layer, q, q, q, wrong)
    two_axes = torch.ones(6, 6).tril().bool()
    torch.testing.assert_close(
        heddle.hf.attention(layer, q, q, q, two_axes)[0], heddle.hf.attention(layer, q, q, q, two_axes[None, None])[0]
    )


def test_arguments_that_are_not_read():
    layer, q = torch.nn.Module(), torch.randn(2, 4, 6, 8)
    for option in ({"block_indices": torch.zeros(2, 6, 1)}, {"output_attentions": True}):
        with pytest.raises(ValueError, match=next(iter(option))):
            heddle.hf.attention(layer, q, q, q, **option)


def test_sinks_of_each_query():
    layer, q = torch.nn.Module().eval(), torch.randn(2, 4, 6, 8, dtype=torch.float64)
    sinks = torch.randn(2, 4, 6, 1, dtype=torch.float64)
    scores = q @ q.transpose(2, 3) / 8**0.5
    want = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ q
    got = heddle.hf.attention(layer, q, q, q, is_causal=False, sinks=sinks)[0]
    torch.testing.assert_close(got, want.transpose(1, 2))


@pytest.mark.parametrize("with_mask", [False, True])
def test_indices_of_sparse_attention(with_mask):
    layer, q = torch.nn.Module(), torch.randn(2, 4, 6, 8, dtype=torch.float64)
    indices = torch.stack([torch.randperm(6)[:3] for _ in range(12)]).view(2, 6, 3).to(torch.int32)
    seen = torch.zeros(2, 6, 6, dtype=torch.bool).scatter(-1, indices.long(), True).unsqueeze(1)
    mask = torch.ones(6, 6).tril().bool() if with_mask else None
    seen = seen & mask if with_mask else seen
    want = torch.nn.functional.scaled_dot_product_attention(q, q, q, seen).nan_to_num(0.0)
    got = heddle.hf.attention(layer, q, q, q, mask, is_causal=False, indices=indices)[0]
    torch.testing.assert_close(got, want.transpose(1, 2))
