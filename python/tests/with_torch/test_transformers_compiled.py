"""Models of transformers under torch.compile(fullgraph=True): windows, biases, sinks and sparse attention in one graph,
their logits and their gradients those of eager attention. What is not run here is refused when it loads, by name."""

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.0")

from tiny_models import build  # noqa: E402

import heddle.hf  # noqa: E402

MODELS = ["GptOssForCausalLM", "ModernBertForMaskedLM", "ModernBertDecoderForCausalLM", "Gemma3ForCausalLM", "MistralForCausalLM",
          "DeepseekV32ForCausalLM"]
PADDING = torch.ones(2, 24, dtype=torch.long)
PADDING[1, -5:] = 0


@pytest.fixture(scope="module", autouse=True)
def registered():
    heddle.hf.register()


def rows(length):
    return torch.randint(3, 90, (2, length), generator=torch.Generator().manual_seed(length))


def logits(model, padding=None, length=24):
    given = {"input_ids": rows(length)}
    return model(**given).logits if padding is None else model(**given, attention_mask=padding).logits[padding.bool()]


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_whole_and_padded_rows(name):
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    torch._dynamo.reset()
    eager, ours = build(name, "eager"), build(name, "heddle")
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    with torch.no_grad():
        for padding in (None, PADDING, PADDING.flip(0), PADDING.flip(1)):  # behind the rows, and before them
            torch.testing.assert_close(logits(compiled, padding), logits(eager, padding), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["GptOssForCausalLM", "ModernBertForMaskedLM", "Gemma3ForCausalLM"])
def test_a_training_step(name):
    torch._dynamo.reset()
    eager, ours = build(name, "eager").train(), build(name, "heddle").train()
    for model in (eager, ours):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for run in (eager, compiled):
        logits(run, PADDING).square().mean().backward()
    for (one, x), y in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if x.grad is not None:
            error, size = (x.grad - y.grad).abs().max().item(), x.grad.abs().max().item()
            assert error <= 1e-4 * max(size, 1e-3), f"{one}: {error} of {size}"


def test_other_lengths_share_a_graph():
    """The second length compiles once more, with the length open; later ones compile nothing."""
    torch._dynamo.reset()
    eager, ours = build("MistralForCausalLM", "eager"), build("MistralForCausalLM", "heddle")
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(ours, fullgraph=True, backend=counter)
    with torch.no_grad():
        for length in (24, 17, 40, 33):
            torch.testing.assert_close(logits(compiled, length=length), logits(eager, length=length), atol=2e-5, rtol=1e-4)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["FalconForCausalLM", "BloomForCausalLM", "MptForCausalLM"])
def test_a_model_with_an_attention_of_its_own_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} does not support attn_implementation='heddle': it computes its attention itself"):
        build(name, "heddle")
    model = build(name, "eager")
    with torch.no_grad():
        want = logits(model)
        model.set_attn_implementation("heddle")  # transformers warns, and leaves it as it is
        assert torch.equal(logits(model), want) and model.config._attn_implementation == "eager"
