"""Temperatures and clocks: heat in a node's air, throttling, the loop of both, simulated sensors."""
