"""What run ids look like: a module that stages load which know their run only by its folder."""

RUN_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,199}$"
"""Run ids name folders and appear in shell commands."""
