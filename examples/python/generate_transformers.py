"""Greedy generation with transformers: a small Llama whose attention is heddle's, with each kind of cache.

The tokens are those of transformers' own attention. Weights are drawn, so the tokens mean nothing.
"""

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

import heddle.hf

heddle.hf.register()
config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, initializer_range=0.2)
prompts = [[5, 6, 7, 8, 9], [90, 91]]
tokens = torch.tensor([prompts[0], [0, 0, 0, *prompts[1]]])
attended = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]])  # the shorter prompt stands behind padding


def model_with(attention):
    torch.manual_seed(1)
    return LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()


def generated(attention, **cache):
    model = model_with(attention)
    settings = GenerationConfig(max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=None, **cache)
    return model.generate(tokens, attention_mask=attended, generation_config=settings)[:, tokens.shape[1] :]


expected = generated("eager")
print("tokens of the first prompt:", *expected[0].tolist())
print("a cache that grows:", torch.equal(generated("heddle"), expected))
print("a static cache:", torch.equal(generated("heddle", cache_implementation="static", disable_compile=True), expected))
