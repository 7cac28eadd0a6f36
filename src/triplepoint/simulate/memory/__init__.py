"""The memory of a job: weights, gradients, optimizer, activations, buffers; what runs out and why."""
