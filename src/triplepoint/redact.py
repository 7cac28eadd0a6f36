"""Redaction of secrets, the home folder and the user's name in text that is stored with results and shared."""

import os
import re
from collections.abc import Mapping
from typing import Any

_NAMES = r"(?:token|api[_-]?key|access[_-]?key|private[_-]?key|secret|passw(?:or)?d|passphrase|credentials?)"
_VARIABLE = re.compile(rf"(?:^|_)(?:{_NAMES}|key|auth|pat)(?:$|_)", re.IGNORECASE)
_LEAST_CHARACTERS = 8
"""Shortest value that counts as a secret: shorter ones are words such as `true`, which appear everywhere."""
# `--api-key X`, `HF_TOKEN=X`, `"password": "X"`, `Authorization: Bearer X`; counts, such as `num_token=4096`, are none.
_OPTION = re.compile(
    rf"(?P<name>--[\w-]*{_NAMES}[\s=]+[\"']?|\b\w*{_NAMES}\b[\"']?\s*[=:]\s*[\"']?"
    r"|\bauthorization\b[\"']?\s*[=:]\s*[\"']?(?:\w+ )?)"
    rf"(?!\d+\b)[^\s\"',;&]{{{_LEAST_CHARACTERS},}}",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\b(?:hf_\w{20,}|gh[pousr]_\w{30,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}|AKIA[0-9A-Z]{16}"
    r"|AIza[\w-]{35}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
"""Tokens of Hugging Face, GitHub, GitLab, OpenAI, AWS, Google and Slack by the prefixes they are issued with, and JWT
(RFC 7519: base64url of `{"`)."""
_CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)")
_REDACTED = "[redacted]"


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
