"""What a step's time went into: Kineto traces to tables of kernels, intervals and a drawn timeline."""
