"""Text for a person: tables in columns, paragraphs, percent."""

from triplepoint.text import WIDTH, page, paragraph, percent, percent_lost, signed_percent, table


def test_table_aligns_words_left_and_numbers_right_with_headings_of_two_lines() -> None:
    assert table([("job", "step\ns"), ("a", "1.5"), ("longer", "12")], indent=1) == [
        "         step", " job        s", " a        1.5", " longer    12",
    ]  # fmt: skip


def test_paragraph_is_narrow_and_keeps_numbers_with_their_percent_sign() -> None:
    lines = paragraph("x" * (WIDTH - 3) + " 15 % of it", indent=0)
    assert lines == ["x" * (WIDTH - 3), "  15 % of it"]


def test_page_leaves_a_line_between_blocks_and_none_for_empty_ones() -> None:
    assert page([["a", "b"], [], ["c"]]) == "a\nb\n\nc"


def test_percent_of_a_share() -> None:
    assert (percent(0.1234), percent(1.0, 0)) == ("12.3 %", "100 %")
    assert (percent(-1e-5), signed_percent(-1e-5)) == ("0.0 %", "+0.0 %")


def test_a_loss_is_never_printed_as_zero() -> None:
    assert (percent_lost(0.0005), percent_lost(0.0004)) == ("0.1 %", "less than 0.1 %")
    assert percent_lost(0.2, is_bound=True) == "up to 20.0 %"
