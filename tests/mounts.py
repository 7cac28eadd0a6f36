"""Mark of tests that mount a small or read-only file system in a mount namespace."""

import shutil
import subprocess

import pytest


def _can_mount() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run(["unshare", "-rm", "true"]).returncode == 0


needs_mounts = pytest.mark.skipif(not _can_mount(), reason="this system allows no mount namespaces (unshare -rm)")
