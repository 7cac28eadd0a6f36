"""What a simulated run leaves: the same raw artefacts as a launch."""
