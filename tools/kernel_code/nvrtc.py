"""NVRTC through its C functions."""

import ctypes
import os
from pathlib import Path


def loaded_from(name):
    """The file of a library that this process has loaded, by its name or path."""
    wanted = os.path.basename(name)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.partition("/")[2]
        if path and os.path.basename(path).startswith(wanted):
            return f"/{path}"
    return name


class Nvrtc:
    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"
        file = Path(os.path.realpath(loaded_from(path)))
        # NVRTC gives no patch level, but another build of it hardly has the same size.
        self.identity = f"nvrtc-{self.version}-{file.stat().st_size}"
        # NVRTC opens its second library by name alone; opened here, the one that stands beside it is taken.
        builtins = file.parent / f"libnvrtc-builtins.so.{self.version}"
        if builtins.is_file():
            ctypes.CDLL(str(builtins))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def compile(self, name, text, options):
        """(cubin, log); the cubin is empty where the compiler makes none."""
        program = ctypes.c_void_p()
        made = self._library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), f"{name}.cu".encode(), 0, None, None)
        if made != 0:
            raise OSError(f"NVRTC makes no program of '{name}': {self._error(made)}")
        try:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            result = self._library.nvrtcCompileProgram(program, len(options), given)
            log = self._fetch(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
            if result != 0:
                return b"", f"{self._error(result)}\n{log}"
            return self._fetch(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN"), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _error(self, result):
        return self._library.nvrtcGetErrorString(result).decode()

    def _fetch(self, program, size_of, copy):
        size = ctypes.c_size_t()
        if getattr(self._library, size_of)(program, ctypes.byref(size)) != 0 or size.value == 0:
            return b""
        data = ctypes.create_string_buffer(size.value)
        if getattr(self._library, copy)(program, data) != 0:
            return b""
        return data.raw
