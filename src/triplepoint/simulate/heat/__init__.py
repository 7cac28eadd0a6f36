"""Degrees and clocks: heat in a node's air, what holds clocks down, the loop of both, what sensors show of it."""
