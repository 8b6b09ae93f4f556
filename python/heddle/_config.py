"""What there is to know of an install, in one object: for reports of defects."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

from . import _core
from ._core import DeviceInfo


class Config(NamedTuple):
    """This install, and the devices and libraries that it found. `print` shows it in lines.

    - version: of the library. module: the file of the compiled module. python: the interpreter and the system.
    - devices: heddle.DeviceInfo each; a GPU's detail names its driver and the compiler of its kernels. missing: by kind
      of device why there is none, and where it was looked for.
    - cache_folder: of compiled kernels and records of tuning; None if there is no place for it. cached_kernels: how
      many compiled kernels lie there. plan_cache: heddle.plan_cache_counts().
    - environment: the variables of HEDDLE_ that are set.
    """

    version: str
    module: str
    python: str
    devices: list[DeviceInfo]
    missing: dict[str, str]
    cache_folder: str | None
    cached_kernels: int
    plan_cache: dict[str, int]
    environment: dict[str, str]

    def __str__(self) -> str:
        lines = [f"heddle {self.version}, {self.module}", self.python]
        lines += [f"{device.kind}: {device.name}, {device.detail}" for device in self.devices]
        lines += [f"no {kind}: {why}" for kind, why in self.missing.items()]
        kernels = "none" if self.cache_folder is None else f"{self.cached_kernels} in {self.cache_folder}"
        lines.append(f"kernels on disk: {kernels}")
        lines.append("plans: " + ", ".join(f"{name} {count}" for name, count in self.plan_cache.items()))
        lines += [f"{name}={value}" for name, value in self.environment.items()]
        return "\n".join(lines)


def config() -> Config:
    """The version, the devices and the compilers of their kernels, what is missing and why, the caches, and the variables
    that are set. It opens the drivers, as devices() does, and writes nothing.

    >>> import heddle
    >>> heddle.config().version == heddle.__version__
    True
    """
    folder = _core.cache_folder()
    missing = {kind: _core.missing(kind) for kind in ("cuda", "rocm")}
    return Config(
        _core.version(), _core.__file__, f"Python {platform.python_version()}, {platform.platform()}", _core.devices(),
        {kind: why for kind, why in missing.items() if why}, folder or None,
        len(list(Path(folder).glob("*.kernel"))) if folder else 0, dict(_core.plan_cache_counts()),
        {name: value for name, value in sorted(os.environ.items()) if name.startswith("HEDDLE_")})
