"""One table, three renderers."""

import re
from html.parser import HTMLParser

import pytest

from gmmc.base.tables import Cell, Line, Table, as_markdown, as_text
from gmmc.report.page import templates

TABLE = Table(
    ["measured", "published"],
    [
        Line("accuracy", [Cell("92.7%"), Cell("94.1%")]),
        Line("of images", kind="group"),
        Line("FID", [Cell("25.0"), Cell()], strong=True),
    ],
    corner="CIFAR-10",
)
CELLS = [["accuracy", "92.7%", "94.1%"], ["of images", "", ""], ["FID", "25.0", "–"]]


class Rows(HTMLParser):
    """Texts of the cells of each row."""

    def __init__(self, html: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def as_html(table: Table) -> str:
    return str(templates().get_template("parts.html.jinja").module.grid(table, "key", "name"))  # pyright: ignore


def test_text_is_aligned_with_words_left_and_numbers_right():
    assert as_text(TABLE, indent="  ").splitlines() == [
        "  CIFAR-10   measured  published",
        "  accuracy      92.7%      94.1%",
        "  of images",
        "  FID            25.0          –",
    ]


def test_markdown_has_the_same_cells():
    header, rule, *rows = [
        [cell.strip(" *") for cell in line[1:-1].split("|")] for line in as_markdown(TABLE).splitlines()
    ]
    assert header == ["CIFAR-10", "measured", "published"]
    assert rule == ["---"] * 3
    assert rows == CELLS


def test_html_has_the_same_cells():
    header, *rows = Rows(as_html(TABLE)).rows
    assert header[1:] == ["measured", "published"]
    assert [row + [""] * (3 - len(row)) for row in rows] == CELLS


@pytest.mark.parametrize("render", [as_text, as_markdown, as_html])
def test_a_name_in_a_table_cannot_act_on_its_reader(render):
    """A terminal would obey an escape, a browser a tag; Markdown is escaped by its caller."""
    rendered = render(Table.of(["class", "n"], [["\x1b[2J<script>alert(1)</script>", "3"]]))
    if render is as_text:
        assert "\x1b" not in rendered
    if render is as_html:
        assert not re.search("<script", rendered)
    assert "3" in rendered


def test_markdown_escapes_by_the_function_of_its_caller():
    assert as_markdown(Table.of(["class", "n"], [["a|b", "3"]]), lambda text: text.replace("|", "\\|")) == (
        "| class | n |\n| --- | --- |\n| a\\|b | 3 |"
    )
