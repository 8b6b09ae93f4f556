"""A plan of the library's, run on PyTorch's memory and its current stream."""

from comparison import library as c


class Planned:
    """`tensors` and `attention` are the library's, on `device`, and are kept; the workspace is PyTorch's."""

    def __init__(self, lib, torch, device, tensors, attention):
        self.tensors, self.attention = tensors, attention
        self.plan = lib.plan(tensors, attention)
        count = self.plan.workspace_bytes()
        self.workspace = torch.empty(max(count, 1), dtype=torch.uint8, device=device)
        self.options = c.RunOptions(workspace=self.workspace.data_ptr() if count else None)
        if device != "cpu":
            self.options.stream = torch.cuda.current_stream().cuda_stream

    def __call__(self):
        self.plan.run(self.tensors, self.options)
