"""Archives of kernels for GPUs, which `heddle aot` writes."""

from __future__ import annotations

import os

from . import _core
from ._named_arguments import refuses_by_name


@refuses_by_name
def use_archive(path: str | os.PathLike[str]) -> None:
    """From now on the process takes kernels from the archive at `path` too, behind those that HEDDLE_ARCHIVE names and those of
    earlier calls. A kernel that an archive has is neither looked for on disk nor compiled, so it needs no compiler.

    An archive is machine code: use one only if you would load a library from the same source. `heddle aot` writes them.

    Raises OSError if the file cannot be read, is no archive or is damaged, and ValueError if another version of heddle wrote it.

    >>> import heddle
    >>> heddle.use_archive("not_there.archive")
    Traceback (most recent call last):
    OSError: the archive not_there.archive cannot be opened: No such file or directory; ...
    """
    _core.use_archive(os.fsencode(path))
