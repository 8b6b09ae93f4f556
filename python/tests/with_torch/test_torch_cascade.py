"""Pages of several levels as FlashInfer's users call them, beside attention in f64."""

import pytest
import torch
from test_torch_serving import reference

from heddle.torch import flashinfer

HEADS, KV_HEADS, D, PAGE = 4, 2, 16, 4
# The pages of each level's entries: two requests share three pages, of which the first is a third one's, too.
LEVELS = [[[5]], [[0, 3], [7]], [[1], [2, 4], [6]]]
LAST = [[4], [4, 4], [1, 3, 2]]
OF = [[0, 0, 0], [0, 0, 1], [0, 1, 2]]  # the entry of each request


def arrays(queries):
    ends = torch.tensor([0, *queries]).cumsum(0)
    qo = [ends[[0, 3]], ends[[0, 2, 3]], ends]
    indptr = [torch.tensor([0, *(len(pages) for pages in level)]).cumsum(0) for level in LEVELS]
    indices = [torch.tensor([page for pages in level for page in pages]) for level in LEVELS]
    return [[x.to(torch.int32) for x in array] for array in (qo, indptr, indices, [torch.tensor(x) for x in LAST])]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("queries", [[1, 1, 1], [2, 2, 2], [1, 3, 2]])
def test_levels(layout, queries):
    torch.manual_seed(1)
    pages, q = torch.randn(8, 2, PAGE, KV_HEADS, D), torch.randn(sum(queries), HEADS, D)
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(3, None, layout)
    wrapper.plan(*arrays(queries), HEADS, KV_HEADS, D, PAGE, causal=True, logits_soft_cap=5.0)
    got = wrapper.run(q, pages if layout == "NHD" else pages.transpose(2, 3))
    begin = 0
    for b, count in enumerate(queries):
        own = [page for level, of in zip(LEVELS, OF) for page in level[of[b]]]
        length = (len(own) - 1) * PAGE + LAST[2][b]
        k, v = (pages[own, i].reshape(-1, KV_HEADS, D)[:length] for i in range(2))
        want = reference(q[begin:begin + count], k, v, causal=True, softcap=5.0)[0]
        torch.testing.assert_close(got[begin:begin + count].double(), want, atol=5e-6, rtol=1e-5)
        begin += count
    assert [x.tolist() for x in wrapper._prefixes] == [[0, 0, -1], [12, 12, 0]]


def test_refusals():
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(3)
    with pytest.raises(RuntimeError, match="before plan"):
        wrapper.run(torch.randn(3, HEADS, D), torch.randn(8, 2, PAGE, KV_HEADS, D))
    given = arrays([1, 1, 1])
    with pytest.raises(ValueError, match="arrays of 2 levels; 3 are accepted"):
        wrapper.plan(*(array[:2] for array in given), HEADS, KV_HEADS, D, PAGE)
    with pytest.raises(NotImplementedError, match="window_left is given"):
        wrapper.plan(*given, HEADS, KV_HEADS, D, PAGE, window_left=3)
    given[3][1] = torch.tensor([3, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"paged_kv_last_page_len\[1\] leaves a page that is not full"):
        wrapper.plan(*given, HEADS, KV_HEADS, D, PAGE)
    given = arrays([1, 1, 1])
    given[0][1] = torch.tensor([0, 2, 2], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"qo_indptr_arr\[1\] gives no entry the queries 2 to 3"):
        wrapper.plan(*given, HEADS, KV_HEADS, D, PAGE)
    with pytest.raises(NotImplementedError, match="use_cuda_graph is given"):
        flashinfer.MultiLevelCascadeAttentionWrapper(2, use_cuda_graph=True)
