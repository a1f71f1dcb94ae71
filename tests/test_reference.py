from dai.perform.activity import ACTIVITIES, documentation
from dai.perform.reference import activities_page


def test_every_activity_has_a_section_with_its_documentation_and_its_example() -> None:
    page = activities_page()
    for name in ACTIVITIES:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert documentation(ACTIVITIES[name])[0] in section
        assert f"<{name} " in section.partition("```xml")[2]


def test_a_section_says_where_everything_stands() -> None:
    section = activities_page().partition("\n## sqlQueryStatement\n")[2].partition("\n## ")[0]
    assert "| `<expression>` | text | once |" in section
    assert '| `<webRowSetStream name="…"/>` or `<resultStream name="…"/>` | output: tuples | once |' in section
    assert "### `sqlParameter` in sqlQueryStatement" in section
    assert '| `position="…"` | whole number | optional |' in section
