"""Configuration: models, clusters, GPU types, studies, and the points and runs they come to."""

RUN_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,199}$"
"""Run ids name folders and appear in shell commands."""
