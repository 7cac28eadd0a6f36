"""How power swings, and what smooths it."""
