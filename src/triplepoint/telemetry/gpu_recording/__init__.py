"""Recording of one GPU under known work, for sensor cards and for the fits of power and heat."""
