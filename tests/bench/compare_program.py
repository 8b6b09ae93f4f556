"""bench/compare.py as a program."""

import contextlib
import io

import bench_path  # noqa: F401
import compare


def run_compare(*arguments):
    """(exit status, what it prints, what it says of errors)."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = compare.main(list(arguments))
        except SystemExit as leave:
            status = leave.code
    return status, out.getvalue(), err.getvalue()
