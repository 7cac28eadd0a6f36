"""What of a kernel's name tells what it is: the function's own name, then what it is called with.

A kernel of PyTorch or CUTLASS is a template: `vectorized_elementwise_kernel<4, FillFunctor<float>, ...>(int, ...)`. The
own name stands before the first bracket. Names of ROCm may come mangled (`_ZN7ck_tile6kentryI...`); their identifiers
are read off, which is enough to recognise them.
"""

import re
from typing import NamedTuple

_READ_CHARACTERS = 320
"""Template names run to thousands of characters; what the kernel does stands at the start, argument types follow.

Of 1,900 names recorded or labelled none changes its class down to 200.
"""

_MANGLED = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|DF\d+[b_]|T\d*_|(\d+)")
"""A step through a mangled name; digits of literals, substitutions, short floats and parameters are no length."""


class Parts(NamedTuple):
    """A kernel's name in lower case, without return type, anonymous namespaces and namespaces of PyTorch's own.

    Attributes:
        own: The function, `vectorized_elementwise_kernel`.
        whole: The function with what it is called with.
    """

    own: str
    whole: str


def split(name: str) -> Parts:
    """Return the parts of a kernel's name."""
    if name.startswith("_Z"):
        return _split_mangled(name[:_READ_CHARACTERS])
    text = name[:_READ_CHARACTERS].removesuffix(".kd")
    if text.startswith("std::enable_if<"):
        # A return type that computes itself; the function follows it.
        text = text.partition(">::type ")[2] or text
    for noise in ("(anonymous namespace)::", "<unnamed>::", "at::native::"):
        text = text.replace(noise, "")
    text = text.removeprefix("void ").lower()
    return Parts(re.split(r"[<(]", text, maxsplit=1)[0], text)


def _split_mangled(name: str) -> Parts:
    own: list[str] = []
    others: list[str] = []
    at = end = 3 if name.startswith("_ZN") else 2
    while found := _MANGLED.search(name, at):
        at = found.end()
        if found[1]:
            at += int(found[1])
            # Identifiers that follow one another without a gap are the function; then its template arguments begin.
            part_of = own if not others and found.start() == end else others
            part_of.append(name[found.end() : at].lower())
            end = at
    own = [word for word in own if not word.startswith("_global__n")]
    return Parts("::".join(own), " ".join(own + others))
