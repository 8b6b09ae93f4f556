"""FlashInfer's older names of run(), which serving engines still call, and what wrappers say of their workspace."""

from __future__ import annotations

from typing import Any


class OlderNames:
    """Beside plan() and run() of a wrapper."""

    _options: Any
    run: Any

    def run_return_lse(self, *args: Any, **given: Any) -> Any:
        """run() with return_lse: (out, lse)."""
        return self.run(*args, **{**given, "return_lse": True})

    def forward(self, *tensors: Any, **given: Any) -> Any:
        """run() with plan()'s options given anew: causal, pos_encoding_mode, window_left, logits_soft_cap and sm_scale have
        plan()'s defaults where they are left out, whatever plan() was given."""
        rest = self._take_options(given)
        return self.run(*tensors, **rest)

    def forward_return_lse(self, *tensors: Any, **given: Any) -> Any:
        """forward() with lse: (out, lse)."""
        return self.forward(*tensors, **{**given, "return_lse": True})

    def _take_options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Makes the options of them, and returns the others, which run() takes."""
        if self._options is None:
            raise RuntimeError("forward() is called before plan()")
        defaults: dict[str, Any] = {"causal": False, "pos_encoding_mode": "NONE", "window_left": -1,
                                    "logits_soft_cap": None, "sm_scale": None}
        self._options = self._options.anew(**{name: given.get(name, default) for name, default in defaults.items()})
        unread = {*defaults, "use_fp16_qk_reduction", "allow_fp16_qk_reduction", "rope_scale", "rope_theta"}
        return {name: value for name, value in given.items() if name not in unread}

    def end_forward(self) -> None:
        """Nothing to release."""

    def reset_workspace_buffer(self, float_workspace_buffer: Any, int_workspace_buffer: Any = None) -> None:
        """Nothing to set: buffers are not read."""

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether the wrapper was made with use_cuda_graph."""
        return bool(getattr(self, "_graph", False))
