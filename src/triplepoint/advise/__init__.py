"""Advice before and after a study: what it will cost."""
