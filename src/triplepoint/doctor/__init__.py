"""Checks nodes before GPU hours are spent on them, and measures what the simulator is calibrated with."""
