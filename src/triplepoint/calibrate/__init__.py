"""Fits of the simulator's constants to measurements, offline, for `triplepoint calibrate`."""
