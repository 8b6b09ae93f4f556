"""Attention over several ranks, Gloo processes on the CPU or with HEDDLE_TEST_DEVICE=cuda a GPU each over NCCL, equals
attention in float64 over the whole sequence: results and all gradients, for any mask and mod. context_cases.py has the
problems, context_ranks.py the processes."""

import dataclasses
import os
from types import SimpleNamespace

import pytest
import torch

import context_cases
from context_cases import Problem
from context_problems import COMPILED, FAULTS, IN_GRANULES, ON_HOSTS, PROBLEMS
from context_ranks import Failure
from context_judge import MOST, ON_GPUS, assert_right, fitting, in_dtype, joined, run
from gradient_reference import dense
from heddle.torch import _context_call, context_parallel
from heddle.torch._call import Call

FULL = bool(os.environ.get("HEDDLE_TEST_FULL"))
pytestmark = pytest.mark.skipif(MOST < 2, reason="there are no two GPUs")
on_cpus = pytest.mark.skipif(ON_GPUS, reason="NCCL ends the processes of a group that waits in vain")


@pytest.mark.parametrize("name", PROBLEMS)
def test_several_ranks_agree_with_float64(ranks, name):
    run(ranks, PROBLEMS[name])


@pytest.mark.skipif(not FULL or ON_GPUS, reason="HEDDLE_TEST_FULL is not set, or there are no eight GPUs")
@pytest.mark.parametrize("name", PROBLEMS)
def test_eight_ranks_agree_with_float64(pool, name):
    run(pool(8), dataclasses.replace(PROBLEMS[name], ranks=8))


@pytest.mark.skipif(MOST < 4, reason="there are no four GPUs")
@pytest.mark.parametrize("name", ON_HOSTS)
def test_ranks_on_hosts_agree_with_float64(ranks, name):
    """Two hosts of two ranks, in pretence; with HEDDLE_TEST_FULL also two of four and four of two."""
    replies = run(ranks, dataclasses.replace(ON_HOSTS[name], ranks=4, hosts=2))
    assert name == "window" or sum(reply["crossed"] for reply in replies) > 0


@pytest.mark.skipif(not FULL or ON_GPUS, reason="HEDDLE_TEST_FULL is not set, or there are no eight GPUs")
@pytest.mark.parametrize("hosts", (2, 4))
@pytest.mark.parametrize("name", ON_HOSTS)
def test_eight_ranks_on_hosts_agree_with_float64(pool, name, hosts):
    run(pool(8), dataclasses.replace(ON_HOSTS[name], ranks=8, hosts=hosts))


@on_cpus
def test_a_row_crosses_once_to_a_host(ranks):
    """All keys to all ranks: half of them come to each host. Bits are those of each run."""
    problem = Problem(ranks=4, hosts=2, mask=None, q_len=64)
    replies = run(ranks, problem)
    assert [reply["crossed"] for reply in replies] == [16] * 4
    assert [reply["received"] for reply in replies] == [48] * 4
    again = ranks.results("compute", problem, ranks=4)
    for one, other in zip(replies, again):
        assert all(torch.equal(one[name], other[name]) for name in ("out", "d_query", "d_key", "d_value"))
    (text, *others) = ranks.results("explained", problem, ranks=4)
    assert "receives 48 rows, takes 16 from other hosts" in text and all(other == text for other in others)
    assert "bytes across hosts: 640 (1280 if each rank took its own), within hosts: 1280" in text


@on_cpus
def test_few_bytes_cross_in_one_step(ranks):
    problem = Problem(ranks=4, hosts=2, mask=None, q_len=64, score="alibi", plan={"host_steps": None})
    run(ranks, problem)
    for few, many in ranks.results("steps_taken", problem, ranks=4):
        assert few[0] and not many[0]
        assert few[1].endswith("predicted: one step 0.055 ms, two steps 0.110 ms; one step taken\n")
        assert many[1].endswith("two steps taken\n")
    for steps in (1, 2):
        forced = dataclasses.replace(problem, plan={"host_steps": steps})
        taken = ranks.results("steps_taken", forced, ranks=4)
        assert all(one == (steps == 1) and "predicted" not in text for made in taken for one, text in made)


@on_cpus
def test_meshes_say_which_ranks_are_near(ranks):
    replies = ranks.results("refused_meshes", ranks=4)
    for rank, found in enumerate(replies):
        assert found[0].startswith("group is a DeviceMesh of 3 dimensions; one of 1 dimension, or of 2")
        assert "ascending ones are accepted" in found[1]
        missed = "group misses this process; each process that calls must be one of its ranks"
        assert found[2] == ((2, rank, 0) if rank < 2 else missed)
        assert found[3] == ((2, rank, 0) if rank < 2 else missed)
        assert found[4] == (4, rank, 2)


@pytest.mark.parametrize("length, heads, kv_heads, groups, groups_of_received", [
    (32768, 16, 16, 2, 1), (32768, 64, 8, 2, 1), (131072, 16, 16, 2, 1), (1024, 64, 8, 1, 1)])
def test_groups_have_the_least_predicted_time(length, heads, kv_heads, groups, groups_of_received):
    """Causal, on GPUs, here two of them, each with half of the pairs; bf16, head dimension 128."""
    query, key = (torch.empty(1, one, length // 2, 128, dtype=torch.bfloat16, device="meta") for one in (heads, kv_heads))
    plan = SimpleNamespace(size=2, rows=lambda rank, of_keys=False: length // 2)
    exchange = SimpleNamespace(most_received=length // 2, most_elements=length**2 / 4)
    call = Call(query, key, key)
    assert _context_call.chosen_groups(plan, exchange, call, False) == groups
    assert _context_call.chosen_groups(plan, exchange, call, True) == groups_of_received, "own keys hide the exchange"


@on_cpus
def test_plans_are_made_before_anything_is_sent(ranks):
    problem = Problem(ranks=3, heads=4, kv_heads=2, mask="by head", score="bias", sinks=True, options={"head_groups": 2})
    replies = ranks.results("prepared", problem, ranks=3)
    assert_right(problem, [made for made, _ in replies])
    assert all(count == 1 for _, count in replies)


@on_cpus
def test_the_largest_scores_are_whole(ranks):
    problem = Problem(ranks=3, score="alibi", mask="window")
    got = joined(problem, ranks.results("compute", problem, ranks=3))["max_scores"]
    query, key, _ = problem.inputs()
    slopes = problem.learned()["slopes"].detach()
    place = torch.arange(problem.q_len)
    distance = place - place[:, None]
    scores = query @ key.transpose(-1, -2) * problem.dim**-0.5 + slopes[:, None, None] * distance
    scores = scores.masked_fill((distance > 0) | (distance <= -5), -torch.inf)
    torch.testing.assert_close(got, scores.amax(-1))


@on_cpus
def test_dropout_has_the_same_bits_for_any_number_of_ranks(ranks):
    made = []
    for n in (1, 2, 4):
        problem = Problem(ranks=n, dropout=0.5, q_len=40)
        made.append(joined(problem, run(ranks, problem)))
    for one in made[1:]:
        assert torch.equal(one["out"] == 0, made[0]["out"] == 0)
        torch.testing.assert_close(one["out"], made[0]["out"], rtol=1e-12, atol=1e-12)


@on_cpus
def test_results_are_the_same_bits_again(ranks):
    problem = Problem(ranks=4, dtype=torch.bfloat16, dim=64, v_dim=64, q_len=96, score="alibi")
    first, second = (joined(problem, ranks.results("compute", problem, ranks=4)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first if first[name] is not None)


@on_cpus
def test_gradients_of_16_bits_are_added_in_f32(ranks):
    """dK and dV of four ranks err no more than those of one: each is rounded once."""
    errors = {}
    for n in (1, 4):
        problem = Problem(ranks=n, dtype=torch.bfloat16, dim=64, v_dim=64, q_len=96, mask=None)
        got, want = joined(problem, ranks.results("compute", problem, ranks=n)), in_dtype(problem, torch.float64)
        errors[n] = [(got[name].double() - want[name]).square().mean().sqrt().item() for name in ("d_key", "d_value")]
    assert all(four < 1.1 * one for one, four in zip(errors[1], errors[4])), errors


@on_cpus
@pytest.mark.parametrize("mask, most", [("window", 7), ("documents", 24), ("unread keys", 20), (None, 32)])
def test_a_rank_receives_what_its_queries_read(ranks, mask, most):
    problem = Problem(ranks=4, q_len=40, mask=mask, plan={"placing": "contiguous"})
    replies = run(ranks, problem)
    assert max(reply["received"] for reply in replies) <= most
    allowed = torch.ones(40, 40, dtype=torch.bool)
    if mask is not None:
        q, kv = torch.arange(40)[:, None], torch.arange(40)[None]
        allowed = context_cases.mask_of(problem)(0, 0, q, kv).expand(40, 40)
    for reply in replies:
        rows = allowed[reply["q"]].any(0)
        blocks = torch.cat([torch.full((4,), bool(block.any())) for block in rows.split(4)])
        blocks[reply["kv"]] = False
        assert reply["received"] == int(blocks.sum()), "the union of the blocks that its queries list"


@on_cpus
def test_neighbours_stay_neighbours(ranks):
    """Kernels get starts, and no captures, where a rank's queries and its rows of keys are one piece each."""
    window = run(ranks, Problem(ranks=4, q_len=61, mask="window", score="alibi", plan={"placing": "contiguous"}))
    assert all(reply["starts"][0] == int(reply["q"][0]) for reply in window)
    assert [reply["starts"][1] for reply in window] == [max(0, int(reply["q"][0]) - 4) for reply in window]
    halves = run(ranks, Problem(ranks=2, q_len=64, score="alibi", plan={"placing": "zigzag"}))
    assert [reply["starts"] for reply in halves] == [(None, 0), (16, 0)], "received rows stand in a gap of own ones"
    whole = run(ranks, Problem(ranks=2, q_len=64, mask=None, plan={"placing": "contiguous"}))
    assert [reply["starts"] for reply in whole] == [(0, 0), (32, 0)]


@pytest.mark.parametrize("name", IN_GRANULES)
def test_rows_in_granules_agree_with_float64(ranks, name):
    """Chunks of 128 rows are granules, whose positions kernels look up once; the tail of a sequence may cut one."""
    problem = IN_GRANULES[name]
    problem = fitting(dataclasses.replace(problem, plan={"placing": "zigzag", "chunk": 128, **problem.plan}))
    replies = run(ranks, problem)
    assert any(reply["starts"][0] is None for reply in replies), "no rank has several pieces"
    if name == "other granules":
        assert not all(reply["granules"][0] for reply in replies)
    elif problem.ranks > 2:
        assert all(reply["granules"][0] for reply in replies)


@on_cpus
def test_rows_that_no_query_reads_may_hold_anything(ranks):
    problem = Problem(ranks=3, q_len=40, mask="unread keys", options={})
    replies = ranks.results("poisoned", problem, ranks=3)
    clean = ranks.results("compute", problem, ranks=3)
    for got, want in zip(replies, clean):
        assert torch.equal(got["out"], want["out"]) and torch.equal(got["d_query"], want["d_query"])


@on_cpus
def test_one_plan_serves_several_masks(ranks):
    problem = Problem(ranks=3, q_len=40)
    replies = ranks.results("of_several_masks", problem, ranks=3)
    order = torch.cat([positions for positions, _, _ in replies]).argsort()
    for number, name in enumerate(("causal", "window", "prefix") * 2):
        got = torch.cat([found[number] for _, found, _ in replies], 2).index_select(2, order)
        want = dense(*problem.inputs(), mask_mod=context_cases.mask_of(dataclasses.replace(problem, mask=name)))[0]
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert all(kept == 8 for _, _, kept in replies), "a plan keeps the last masks of its calls alone"


@on_cpus
def test_rows_go_to_their_ranks_and_come_back(ranks):
    """The gradient of unshard is the sum over the ranks: 1 + 2 + 3 times the one that a single rank asks for."""
    replies = ranks.results("through_rows", 3, ranks=3)
    for case, (dim, of_keys) in enumerate(((1, False), (-1, True), (0, False))):
        for positions, kv_positions, made in replies:
            whole, again, gradient = made[case]
            rows = kv_positions if of_keys else positions
            assert torch.equal(again.index_select(dim, rows), whole.index_select(dim, rows))
            want = torch.zeros_like(whole).index_fill_(dim, rows, 6.0)
            assert torch.equal(gradient, want)
        assert all(torch.equal(made[case][1], replies[0][2][case][1]) for _, _, made in replies)


# ---- faults


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(ranks, fault):
    if fault == "local kv_idx" and MOST < 3:
        pytest.skip("the keys of two ranks stand in their order; three ranks are accepted")
    if FAULTS[fault].hosts > 1 and MOST < 4:
        pytest.skip("there are no four GPUs")
    problem = fitting(dataclasses.replace(FAULTS[fault], q_len=40, plan={"placing": "zigzag"}))
    run(ranks, problem)
    with pytest.raises(AssertionError):
        assert_right(problem, ranks.results("planted", problem, fault, ranks=problem.ranks))


def assert_all_fail(replies, kinds, text):
    """Each rank raised one of these; the ranks whose fault it was say what it is."""
    assert all(isinstance(one, Failure) for one in replies), replies
    assert all(one.kind in kinds for one in replies), replies
    assert any(text in one.message for one in replies), [one.message for one in replies]


@on_cpus
@pytest.mark.parametrize("changes, text", [
    ({1: {"q_len": 38}}, "ranks disagree on lengths"),
    ({0: {"mask": "window"}}, "ranks disagree on masks"),
    ({2: {"plan": {"placing": "heap"}}}, "ranks disagree on the placement"),
    ({2: {"plan": {"chunk": 8}}}, "ranks disagree on the placement"),
    ({1: {"plan": {"chunk": -4}}}, "chunk is -4"),
    ({1: {"form": "function", "kv_len": -1}}, "kv_len -1"),
    ({0: {"batch": 2}}, "ranks disagree on batch, heads and head dimensions"),
    ({1: {"dtype": torch.float32}}, "ranks disagree on the dtype"),
    ({1: {"options": {"keep_kv": True}}}, "ranks disagree on options"),
    ({1: {"options": {"head_groups": 3}}}, "head_groups is 3"),
], ids=str)
def test_ranks_that_disagree_raise_on_each(ranks, changes, text):
    replies = ranks.replies("disagree", 3, changes, ranks=3)
    assert_all_fail(replies, ("ValueError", "RuntimeError"), text)
    run(ranks, Problem(ranks=3))  # the group lives


@pytest.mark.parametrize("wrong, text", [
    ("rows", "this rank holds"), ("heads", "disagree on batch, heads"), ("dtype", "disagree on the dtype"),
    ("mixed dtypes", "one dtype is accepted"), ("score", "disagree on score_mod"), ("mask", "disagree on the mask"),
    ("scale", "disagree on options"), ("gradient", "disagree on which tensors"), ("untraceable", ""), ("depth", "nest"),
    ("seed", "dropout_seed is"),
])
def test_a_wrong_call_of_one_rank_raises_on_each(ranks, wrong, text):
    replies = ranks.replies("call_with", min(3, MOST), wrong, ranks=min(3, MOST))
    assert_all_fail(replies, ("ValueError", "RuntimeError", "TypeError", "NotImplementedError"), text)
    run(ranks, Problem(ranks=3))


def test_partition_refuses_without_a_group():
    with pytest.raises(RuntimeError, match="no process group yet"):
        context_parallel.partition(q_len=4)


@on_cpus
def test_partition_refuses_groups_that_miss_the_process(ranks):
    (found,) = ranks.results("refused_at_once", ranks=(3,))
    assert found[0] == "group misses this process; each process that calls must be one of its ranks"
    assert found[1].startswith("group is list; a ProcessGroup")


@on_cpus
def test_partition_and_attention_refuse_by_name(ranks):
    parts = ("q_len is None", "masks[1] covers 17 queries", "kv_len is 17, and the block mask's is 16", "an empty list",
             "the tensors are on cuda:0, and the group's backend is gloo; nccl carries", "weights has 2 numbers",
             "block_mask is int", "cu_seqlens goes from 0 to 9", "placing is 'random'", "checks is 'never'",
             "host_steps is 3",
             "the sequence has 1 queries, and the group 2 ranks", "the sequence has 0 keys, and the group 2 ranks",
             "the plan was made for 2 masks", "q_len is 16, and the block mask's is 17",
             "the tensors are on cuda:0, and the group's backend is gloo; nccl carries")
    for found in ranks.results("refused_by_all", 2, ranks=2):
        for text, part in zip(found, parts, strict=True):
            assert part in text


# ---- beside torch's other parts


@pytest.mark.parametrize("backend", ["aot_eager", *(["inductor"] if FULL else [])])
def test_one_compiled_graph_serves_several_plans(ranks, backend):
    problems = [dataclasses.replace(one, options={"head_groups": 2}) for one in COMPILED]
    for replies in ranks.results("compiled", problems, backend, ranks=2):
        for results in replies:
            for got, want in results:
                torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_compiled_calls_refuse_by_name(ranks):
    for found in ranks.results("refused_in_graphs", Problem(ranks=2), ranks=2):
        assert "max_scores are computed by eager calls alone" in found["max_scores"]
        assert "dropout_seed is None" in found["seed"]
        assert "block_mask is none of the plan's masks" in found["mask"]
        assert "and the plan was made for meta; the same device is accepted" in found["device"]
        assert "the mask has batch 3; 1 or the query's 1 is accepted" in found["batch"]
        assert "this rank holds" in found["rows"]


@on_cpus
def test_checkpoints_compute_the_same(ranks):
    problem = Problem(ranks=3, score="alibi", sinks=True, dropout=0.5, q_len=40)
    for with_checkpoint, without in ranks.results("checkpointed", problem, ranks=3):
        assert all(torch.equal(x, y) for x, y in zip(with_checkpoint, without, strict=True))


@on_cpus
def test_dtensors_are_taken_and_given(ranks):
    for refused in ranks.results("of_dtensors", Problem(ranks=3, form="function"), ranks=3):
        assert "query is a DTensor of" in refused[0] and "are DTensors and the others are not" in refused[1]


@on_cpus
def test_torchs_context_parallel_works_on(ranks):
    problem = Problem(q_len=512, dim=16, v_dim=16)
    replies = sorted(ranks.results("torchs_context_parallel", ranks=2), key=lambda reply: reply[0])
    assert all(went["flex_attention"] == "heddle" for _, _, went in replies), replies
    got = torch.cat([out for _, out, _ in replies], 2)
    want = dense(*problem.inputs(), mask_mod=context_cases.mask_of(problem))[0]
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


# ---- ranks that do not come


@on_cpus
def test_a_call_that_one_rank_omits_ends_in_time(ranks):
    """As late as the group's timeout, three seconds here."""
    replies = ranks.replies("absent", ranks=2)
    assert isinstance(replies[0], Failure) and replies[0].kind in ("RuntimeError", "DistBackendError"), replies
    assert replies[1] is None
    run(ranks, Problem(ranks=4))


@on_cpus
def test_a_rank_that_dies_raises_on_the_others(ranks):
    """Before, in and after the exchange; the last test, because it leaves one process of four."""
    for other, when in ((3, "before"), (2, "in"), (1, "after")):
        ranks.start("die", other, when, ranks=(0, other))
        assert ranks.reply(other) is None
        survivor = ranks.reply(0)
        assert isinstance(survivor, Failure) and survivor.kind in ("RuntimeError", "DistBackendError"), survivor


@on_cpus
@pytest.mark.skipif(not FULL, reason="HEDDLE_TEST_FULL is not set: ranks of the dead one's neighbour wait for their timeout")
def test_a_rank_that_dies_between_hosts_raises_on_the_others(pool):
    ranks = pool(4)
    ranks.start("die_on_hosts", ranks=4)
    assert ranks.reply(3) is None
    for rank in range(3):
        survivor = ranks.reply(rank)
        assert isinstance(survivor, Failure) and survivor.kind in ("RuntimeError", "DistBackendError"), survivor


@on_cpus
def test_copies_share_the_plan_and_mods_may_be_long(ranks):
    from context_beside_torch import long_mask, long_score

    replies = ranks.results("copied_with_long_mods", 40, ranks=2)
    order = torch.cat([positions for positions, _, _ in replies]).argsort()
    ids = (torch.arange(40) >= 11).int()
    want = dense(*Problem(q_len=40).inputs(), long_score, lambda b, h, q, kv: long_mask(b, h, q, kv) & (ids[q] == ids[kv]))[0]
    torch.testing.assert_close(torch.cat([out for _, out, _ in replies], 2).index_select(2, order).cpu(), want)
    assert all("is not pickled; each process calls partition()" in refused for _, _, refused in replies)
