"""Fitting the few constants to measurements, and the uncertainty that is left."""
