"""Samples of a node on disk."""
