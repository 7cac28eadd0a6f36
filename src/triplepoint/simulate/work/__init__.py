"""Work of a job: the kernels and collectives of each layer, with shapes, FLOPs and bytes."""
