"""One backend of PyTorch's scaled_dot_product_attention, through its public functions."""


class Sdpa:
    """A call computes the forward; or, with dO, the gradients of q, k and v by autograd's engine. q, k, v and dO are
    [B, H, S, D]; `backend`: a name of torch.nn.attention.SDPBackend."""

    def __init__(self, torch, backend, q, k, v, causal, d_o=None):
        from torch.nn.attention import SDPBackend

        self.torch, self.backend, self.causal, self.d_o = torch, getattr(SDPBackend, backend), causal, d_o
        self.wanted = [x.detach() for x in (q, k, v)]
        if d_o is not None:
            self.wanted = [x.requires_grad_() for x in self.wanted]
            with torch.enable_grad():
                self.o = self.attend()

    def attend(self):
        from torch.nn.attention import sdpa_kernel

        with sdpa_kernel(self.backend):
            return self.torch.nn.functional.scaled_dot_product_attention(*self.wanted, is_causal=self.causal)

    def __call__(self):
        if self.d_o is not None:
            return self.torch.autograd.grad(self.o, self.wanted, self.d_o, retain_graph=True)
        with self.torch.no_grad():
            return self.attend()
