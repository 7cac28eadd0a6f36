"""Analysis of one rank's trace: its work, steps and phases, and the use of its time."""
