"""Watts of GPUs, nodes and racks, from what runs on them, at which clock and how hot."""
