"""Context parallel attention with own_first: the results of own keys and of received ones are merged, and both backwards
added. Judged as test_torch_context.py judges."""

import dataclasses

import pytest
import torch

from context_cases import Problem
from context_judge import MOST, ON_GPUS, assert_right, fitting, in_dtype, joined, run
from context_problems import COMPILED, IN_GRANULES, ON_HOSTS, OWN_FIRST_FAULTS, PROBLEMS

pytestmark = pytest.mark.skipif(MOST < 2, reason="there are no two GPUs")
on_cpus = pytest.mark.skipif(ON_GPUS, reason="it asks for three ranks or four")


def own_first(problem, **options):
    return dataclasses.replace(problem, options={**problem.options, **options, "own_first": True})


@pytest.mark.parametrize("name", PROBLEMS)
def test_ranks_agree_with_float64(ranks, name):
    run(ranks, own_first(PROBLEMS[name]))


@pytest.mark.parametrize("name", IN_GRANULES)
def test_rows_in_granules_agree_with_float64(ranks, name):
    problem = own_first(IN_GRANULES[name])
    run(ranks, dataclasses.replace(problem, plan={"placing": "zigzag", "chunk": 128, **problem.plan}))


@on_cpus
def test_rows_that_cross_hosts_stand_in_one_buffer(ranks):
    problem = dataclasses.replace(ON_HOSTS["causal"], ranks=4, hosts=2)
    alone, asked = (ranks.results("compute", one, ranks=4) for one in (problem, own_first(problem)))
    for one, other in zip(alone, asked):
        assert all(torch.equal(one[name], other[name]) for name in ("out", "d_query", "d_key", "d_value"))


# Two heads of keys, so own keys of one come before the received ones in a backward, those of the other behind.
TURNS = ["send", "attend", "arrived", "attend"]
TURNS_BACK = ["send", "attend back", "arrived", "attend back", "return", "attend back", "add", "add"]


@on_cpus
@pytest.mark.parametrize("options, forward, backward", [
    ({}, TURNS, TURNS_BACK),
    ({"keep_kv": True}, TURNS, ["arrived", "attend back", "return", "attend back", "add"]),
    ({"head_groups": 2}, ["send", "send", "attend", "arrived", "attend", "arrived", "attend"],
     ["send", "send", "attend back", "arrived", "attend back", "return", "arrived", "attend back", "return",
      "attend back", "add", "add"]),
])
def test_exchanges_go_on_beside_attentions(ranks, options, forward, backward):
    """What each rank does, one after the other. A return is waited for behind the next attention."""
    problem = own_first(Problem(ranks=2, score="alibi", plan={"placing": "zigzag"}), **options)
    for turns in ranks.results("turns", problem, ranks=2):
        assert turns == forward + backward


@on_cpus
def test_plans_are_made_before_anything_is_sent(ranks):
    problem = own_first(Problem(ranks=3, heads=4, kv_heads=2, mask="by head", score="bias", sinks=True), head_groups=2)
    replies = ranks.results("prepared", problem, ranks=3)
    assert_right(problem, [made for made, _ in replies])
    assert all(count == 1 for _, count in replies)


@on_cpus
def test_the_largest_scores_are_whole(ranks):
    problem = Problem(ranks=3, score="alibi", mask="nothing for some")
    alone, merged = (joined(one, ranks.results("compute", one, ranks=3))["max_scores"]
                     for one in (problem, own_first(problem)))
    torch.testing.assert_close(merged, alone, rtol=1e-12, atol=1e-12)


@on_cpus
def test_dropout_has_the_same_bits(ranks):
    problem = Problem(ranks=3, dropout=0.5, q_len=40)
    alone, merged = (joined(one, run(ranks, one))["out"] for one in (problem, own_first(problem)))
    assert torch.equal(alone == 0, merged == 0)


@on_cpus
def test_results_of_16_bits_are_rounded_once(ranks):
    """Four ranks err no more than one."""
    errors = {}
    for n in (1, 4):
        problem = own_first(Problem(ranks=n, dtype=torch.bfloat16, dim=64, v_dim=64, q_len=96, mask=None))
        got, want = joined(problem, ranks.results("compute", problem, ranks=n)), in_dtype(problem, torch.float64)
        errors[n] = [(got[name].double() - want[name]).square().mean().sqrt().item()
                     for name in ("out", "d_query", "d_key", "d_value")]
    assert all(four < 1.1 * one for one, four in zip(errors[1], errors[4])), errors


@on_cpus
def test_lse_keeps_both_words(ranks):
    """Scores of some 1e5, in f32: a merged lse of one word would be wrong by some 0.01."""
    problem = own_first(Problem(ranks=2, dtype=torch.float32, q_len=64, score="far"))
    run(ranks, problem)


@pytest.mark.parametrize("fault", OWN_FIRST_FAULTS)
def test_a_planted_fault_is_found(ranks, fault):
    problem = fitting(own_first(OWN_FIRST_FAULTS[fault]))
    run(ranks, problem)
    with pytest.raises(AssertionError):
        assert_right(problem, ranks.results("planted", problem, fault, ranks=problem.ranks))


def test_compiled_graphs_take_it(ranks):
    problems = [own_first(one, head_groups=2) for one in COMPILED]
    for replies in ranks.results("compiled", problems, "aot_eager", ranks=2):
        for results in replies:
            for got, want in results:
                torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@on_cpus
def test_ranks_must_agree_on_it(ranks):
    replies = ranks.replies("disagree", 3, {1: {"options": {"own_first": True}}}, ranks=3)
    assert all("ranks disagree on options" in one.message for one in replies)
    run(ranks, Problem(ranks=3))  # the group lives
