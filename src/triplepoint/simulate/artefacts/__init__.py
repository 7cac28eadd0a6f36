"""Raw artefacts of a simulated run, the same as of a launch."""
