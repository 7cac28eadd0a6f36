"""Templates, styles and libraries of pages."""

import re
from importlib import resources

import jinja2


def environment() -> jinja2.Environment:
    """Return the Jinja environment of pages: a missing variable is an error, and text is escaped."""
    names = ("front.html", "run.html", "claims.html", "comparison.html")
    return jinja2.Environment(
        loader=jinja2.DictLoader({name: template(name) for name in names}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )


def template(name: str) -> str:
    """Return the text of a template, style or script."""
    return (resources.files("triplepoint.report") / "templates" / name).read_text(encoding="utf-8")


def vendored(name: str) -> str:
    """Return a library without the comment that refers to its source map, which is not shipped."""
    text = (resources.files("triplepoint.report") / "vendor" / name).read_text(encoding="utf-8")
    return re.sub(r"\n?(//# sourceMappingURL=\S+|/\*# sourceMappingURL=\S+ \*/)\s*$", "\n", text)
