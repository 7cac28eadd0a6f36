"""Training loops that Triplepoint did not write: each uses its framework as that framework's own examples do."""
