"""How numbers are written on the page."""


def write_number(value: float) -> str:
    """Return four significant digits, or all of a whole number, without an exponent where one is not needed."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
