"""Templates, styles and libraries that pages are made of."""

import re
from importlib import resources

import jinja2


def environment() -> jinja2.Environment:
    """Return what renders the templates of pages; what a template lacks is an error, text is escaped."""
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
    """Return a library without the comment that names its source map, which is not there."""
    text = (resources.files("triplepoint.report") / "vendor" / name).read_text(encoding="utf-8")
    return re.sub(r"\n?(//# sourceMappingURL=\S+|/\*# sourceMappingURL=\S+ \*/)\s*$", "\n", text)
