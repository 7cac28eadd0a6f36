"""Time and traffic of collectives on the levels of a fabric."""
