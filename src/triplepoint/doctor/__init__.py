"""Checks of nodes before measurements on them, and short measurements to calibrate the simulator with."""
