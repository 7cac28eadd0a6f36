"""A real Slurm cluster on this machine, and the tests that need one."""
