"""Configuration: models, clusters, GPU types and studies, and the points and runs derived from them."""

RUN_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,199}$"
"""Pattern of run ids, which name folders and appear in shell commands."""
