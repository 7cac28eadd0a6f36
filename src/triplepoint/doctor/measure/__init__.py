"""Short measurements of collectives and kernels, in the columns the simulator is calibrated from."""
