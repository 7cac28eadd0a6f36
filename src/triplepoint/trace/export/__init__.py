"""Traces made small enough to look at: the drawn timeline and the merged trace for Perfetto."""
