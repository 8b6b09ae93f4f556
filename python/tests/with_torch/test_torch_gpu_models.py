"""Torch.compile, autocast, take-over and models, where HEDDLE_TEST_DEVICE says."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import device_inputs
import heddle.torch
from agreement import DEVICE, DTYPE
from device_inputs import alibi, causal, documents, random, slopes
from heddle.torch import create_block_mask, flex_attention, scaled_dot_product_attention

pytestmark = pytest.mark.usefixtures("no_grad")
GENERATOR = device_inputs.GENERATOR


def test_compiled_models():
    q, k, v = (random(2, 4, 200, 64) for _ in range(3))

    def model(q, k, v, slopes):
        doubled = slopes * 2

        def score(score, b, h, q_idx, kv_idx):
            return score + doubled[h] * (kv_idx - q_idx) * 0.1

        mask = create_block_mask(documents, 2, None, 200, 200, DEVICE)
        out = flex_attention(q * 1.5, k, v, score, mask) + 1
        return scaled_dot_product_attention(out, k, v, is_causal=True)

    torch.testing.assert_close(torch.compile(model, fullgraph=True)(q, k, v, slopes), model(q, k, v, slopes))


def test_autocast():
    q, k, v = (random(1, 2, 100, 64, dtype=torch.float32) for _ in range(3))
    with torch.autocast(DEVICE, torch.bfloat16):
        outs = flex_attention(q, k, v), scaled_dot_product_attention(q, k, v)
    want = flex_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert all(torch.equal(out, want) for out in outs)


def test_take_over():
    q, k, v = (random(2, 4, 100, 64) for _ in range(3))
    heddle.torch.clear_log()
    with heddle.torch.enabled():
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
        flex.flex_attention(q, k, v, alibi, flex.create_block_mask(causal, None, None, 100, 100, DEVICE))
        encoder = torch.nn.MultiheadAttention(128, 2, batch_first=True, device=DEVICE, dtype=DTYPE).train()
        x = random(2, 10, 128)
        encoder(x, x, x, need_weights=False)
    assert {entry.where for entry in heddle.torch.log()} == {"heddle"}
    assert sum(entry.count for entry in heddle.torch.log()) == 4
    if DEVICE == "cuda":
        heddle.torch.clear_log()
        with heddle.torch.enabled():
            torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
            flex.flex_attention(q.float(), k.float(), v.float(), alibi)
        assert [(entry.function, entry.where) for entry in heddle.torch.log()] == [
            ("scaled_dot_product_attention", "torch: heddle multiplies torch.float32 on cuda without tensor cores"),
            ("flex_attention", "heddle")]


def test_the_flash_attention_implementation():
    if DEVICE == "cpu":
        pytest.skip("test_torch_autograd.py has it")
    q, k, v = (random(2, 100, 4, 64).transpose(1, 2) for _ in range(3))
    torch.nn.attention.activate_flash_attention_impl("heddle")
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            got = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    torch.testing.assert_close(got, scaled_dot_product_attention(q, k, v, is_causal=True))


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma 2", "gpt-oss", "llama 4", "bert", "t5", "vit"])
def test_models(name):
    """Logits in the device's type, beside eager's in f32 and in that type."""
    tests = pytest.importorskip("test_transformers")
    import heddle.hf

    heddle.hf.register()
    eager, ours = tests.models(name)
    given = {key: x.to(DEVICE) for key, x in tests.inputs(name, name not in ("vit", "gpt-oss")).items()}
    if name == "t5":
        given["decoder_input_ids"] = given["input_ids"][:, :7]
    if name == "vit":
        given["pixel_values"] = given["pixel_values"].to(DTYPE)

    def logits(model, dtype):
        inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in given.items()}
        made = model.to(DEVICE, dtype)(**inputs)
        made = made.logits if hasattr(made, "logits") else made.last_hidden_state
        keep = given.get("attention_mask")
        return made.float() if keep is None or name == "t5" else made[keep.bool()].float()

    got, want, plain = logits(ours, DTYPE), logits(eager, torch.float32), logits(eager, DTYPE)
    allowed = 2 * (plain - want).abs().max() + 16 * torch.finfo(DTYPE).eps * max(1, want.abs().max().item())
    assert (got - want).abs().max() <= allowed


def test_generation_with_caches():
    tests = pytest.importorskip("test_transformers")
    import heddle.hf

    heddle.hf.register()
    eager, ours = (model.to(DEVICE, DTYPE) for model in tests.models("llama"))
    tokens = torch.randint(3, 97, (2, 30), generator=torch.Generator().manual_seed(4)).to(DEVICE)
    whole = eager(tokens).logits.float()
    for cache in ("dynamic", "static"):
        options = {"past_key_values": None} if cache == "dynamic" else {}
        if cache == "static":
            from transformers import StaticCache

            options["past_key_values"] = StaticCache(config=ours.config, max_cache_len=40)
        made = ours(tokens[:, :20], use_cache=True, **options)
        steps = [made.logits]
        for i in range(20, 30):
            made = ours(tokens[:, i : i + 1], past_key_values=made.past_key_values, use_cache=True)
            steps.append(made.logits)
        got = torch.cat(steps, 1).float()
        assert (got - whole).abs().max() <= 32 * torch.finfo(DTYPE).eps * max(1, whole.abs().max().item()), cache
