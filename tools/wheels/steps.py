"""Running the steps of a build: commands, and environments of Python."""

import subprocess


def run(*command, **options):
    """Runs it, having said so; an exit status other than 0 is an exception."""
    print("+", *command, flush=True)
    return subprocess.run([str(part) for part in command], check=True, **options)


def environment(python, folder, packages):
    """A virtual environment of this Python's with these packages; its interpreter."""
    if not (folder / "bin/python").exists():
        run(python, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return folder / "bin/python"
