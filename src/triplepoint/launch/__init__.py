"""The launch stage: one gang per run, submitted through submitit, watched on each node, judged by evidence."""
