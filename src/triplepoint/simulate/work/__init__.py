"""The work of a job: each kernel of a layer with its shape, FLOPs and bytes."""
