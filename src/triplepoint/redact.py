"""Redaction of secrets, the home folder and the user's name in text that is stored with results and shared."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from triplepoint.files import atomic_file

_NAMES = r"(?:token|api[_-]?key|access[_-]?key|private[_-]?key|secret|passw(?:or)?d|passphrase|creds|credentials?)"
_VARIABLE = re.compile(rf"(?:{_NAMES}|(?:^|_)(?:key|auth|pass|pat))(?:$|_)", re.IGNORECASE)
_LEAST_CHARACTERS = 8
"""Shortest value that counts as a secret: shorter ones are words such as `true`, which appear everywhere."""
# `--api-key X`, `HF_TOKEN=X`, `"password": "X"`, `Authorization: Bearer X`; counts, such as `num_token=4096`, are none.
_OPTION = re.compile(
    rf"(?P<name>(?<![\w-])--[\w-]*{_NAMES}[\s=]+[\"']?|\b\w*{_NAMES}\b[\"']?\s*[=:]\s*[\"']?"
    r"|\bauthorization\b[\"']?\s*[=:]\s*[\"']?(?:\w+ )?)"
    rf"(?!\d+\b)[^\s\"',;&]{{{_LEAST_CHARACTERS},}}",
    re.IGNORECASE,
)
_HINTS = ("token", "key", "secret", "passw", "passphrase", "cred", "authorization")
"""Parts of words of which one is in every text that `_OPTION` matches: most lines of a log have none, and are quick."""
_TOKEN = re.compile(
    r"\b(?:hf_\w{20,}|gh[pousr]_\w{30,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}|A[KS]IA[0-9A-Z]{16}"
    r"|AIza[\w-]{35}|xox[abprs]-[\w-]{10,}|(?<!-)eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
"""Tokens of Hugging Face, GitHub, GitLab, OpenAI, AWS, Google and Slack by the prefixes they are issued with, and JWT
(RFC 7519: base64url of `{"`)."""
_CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)")
_REDACTED = "[redacted]"
_PART_CHARACTERS = 1 << 16
"""Longest part of a line that is redacted at once; longer lines, as of progress bars, are cut at white space."""


class Redactor:
    """Replacer of secrets, recognised by the name of their variable or option or by their format."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Collect the secrets, home folder and user name of an environment."""
        values = [
            (value, f"[{name}]")
            for name, value in environment.items()
            if _VARIABLE.search(name) and len(value) >= _LEAST_CHARACTERS
        ]
        self._secrets = sorted(values, key=lambda pair: -len(pair[0]))  # longest first: one may be a prefix of another
        home = environment.get("HOME", "").rstrip("/")
        self._home = re.compile(rf"(?<![\w/.]){re.escape(home)}(?=/|\b)") if home else None
        user = environment.get("USER") or environment.get("LOGNAME") or ""
        self._user = re.compile(rf"(?<=/){re.escape(user)}(?=/)") if len(user) > 1 else None

    def text(self, text: str) -> str:
        """Return a redacted text."""
        for value, name in self._secrets:
            text = text.replace(value, name)
        lower = text.lower()
        if any(hint in lower for hint in _HINTS):
            text = _OPTION.sub(rf"\g<name>{_REDACTED}", text)
        text = _CREDENTIALS_IN_URL.sub(_REDACTED, _TOKEN.sub(_REDACTED, text))
        text = self._home.sub("~", text) if self._home else text
        return self._user.sub("$USER", text) if self._user else text

    def content(self, content: Any) -> Any:
        """Return JSON content with every text value redacted; keys are kept."""
        if isinstance(content, str):
            return self.text(content)
        if isinstance(content, dict):
            return {key: self.content(value) for key, value in content.items()}
        return [self.content(value) for value in content] if isinstance(content, list | tuple) else content


def redact_logs(folder: Path) -> None:
    """Redact the files of a folder of logs in place, and let only their owner read them.

    A log that cannot be written again, as on a full disk, stays as it is; a line on standard error says so.

    Args:
        folder: Folder of the logs; it may be missing.
    """
    redactor = Redactor()
    for path in filter(Path.is_file, sorted(folder.glob("*"))):
        try:
            # Bytes that are not text are kept, and so are carriage returns.
            errors = "surrogateescape"
            with (
                atomic_file(path, is_private=True) as scratch,
                path.open(encoding="utf-8", errors=errors, newline="") as log,
                scratch.open("w", encoding="utf-8", errors=errors, newline="") as out,
            ):
                out.writelines(map(redactor.text, _parts(log)))
        except OSError as error:
            why = f"{path}: secrets that the job printed are not removed ({error.strerror})"
            print(f"triplepoint: {why}; remove them before you share this log", file=sys.stderr)


def _parts(log: IO[str]) -> Iterator[str]:
    """Yield the lines of a log; a line of more than `_PART_CHARACTERS` in parts that end at white space."""
    part = ""
    while more := log.readline(_PART_CHARACTERS):
        part += more
        is_long = _PART_CHARACTERS <= len(part) < 2 * _PART_CHARACTERS and not part.endswith("\n")
        end = max(part.rfind(" "), part.rfind("\t")) + 1 if is_long else len(part)
        yield part[:end]
        part = part[end:]
    yield part
