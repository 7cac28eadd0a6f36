"""Which state of the project something was made with."""

import subprocess
from pathlib import Path


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit around `folder` and whether tracked files differ from it; None outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changed is None else bool(changed)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
