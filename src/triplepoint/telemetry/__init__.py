"""Telemetry: one sampler process per node reads devices on absolute deadlines and streams them to disk."""
