"""Fits the constants of the simulator to measurements, offline: what `triplepoint calibrate` runs."""
