"""A table finds what trying every rule in turn finds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.trace.taxonomy.test_default_scheme import LABELLED
from triplepoint.trace.taxonomy import RuleTable, read_builtin, split_alternatives, split_name

RULES = {
    f"{scheme} {table}": getattr(read_builtin(scheme), table)
    for scheme, table in [("default", "device"), ("default", "host"), ("paper", "device"), ("hta", "device")]
}
TABLES = {name: RuleTable(rules) for name, rules in RULES.items()}
WORDS = sorted({word for rules in RULES.values() for rule in rules for word in re.findall(r"\w{2,}", rule[2])})


def first_of_all(rules: list[tuple[str, str, str]], text: str) -> tuple[str, str] | None:
    return next(((cls, kind) for cls, kind, pattern in rules if re.search(pattern, text)), None)


@pytest.mark.parametrize("table", RULES)
def test_first_is_first_of_all_rules_labelled_names(table: str) -> None:
    for _, _, name in LABELLED:
        for text in (name, *split_name(name)):
            assert TABLES[table].first(text) == first_of_all(RULES[table], text)


@pytest.mark.parametrize("table", RULES)
@given(words=st.lists(st.sampled_from(WORDS) | st.sampled_from(["_", "::", "<", " ", "kernel"]), max_size=8))
def test_first_is_first_of_all_rules_any_words(table: str, words: list[str]) -> None:
    text = "".join(words)
    assert TABLES[table].first(text) == first_of_all(RULES[table], text)


@pytest.mark.parametrize(
    ("pattern", "alternatives"),
    [
        ("flash", [("flash", "flash")]),
        ("all_?reduce|nccl\\w*send", [("reduce", "all_?reduce"), ("nccl", "nccl\\w*send")]),
        ("(a|b)norm|cast", [("norm", "(a|b)norm"), ("cast", "cast")]),
        ("sort(?!ed|ing)", [("sort", "sort(?!ed|ing)")]),
        ("ab{2}cde", [("cde", "ab{2}cde")]),
        ("x[a|b]+|\\|y", [("x", "x[a|b]+"), ("y", "\\|y")]),
        ("^", [("", "^")]),
    ],
)
def test_split_alternatives_word_and_pattern(pattern: str, alternatives: list[tuple[str, str]]) -> None:
    assert list(split_alternatives(pattern)) == alternatives
