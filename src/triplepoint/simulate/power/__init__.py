"""Power of GPUs, nodes and racks, from operations, clocks and temperatures."""
