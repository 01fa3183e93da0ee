"""docs/inspect.md shows what the commands print."""

from pathlib import Path

from tests.support.pages.transcripts import with_transcripts

PAGE = Path(__file__).parents[1] / 'docs' / 'inspect.md'


def test_the_transcripts_are_of_today(tmp_path: Path) -> None:
    """If not, write them anew: python -m tests.support.pages.transcripts docs/inspect.md."""
    page = PAGE.read_text()
    assert page.count('```text\n$ ') > 5
    assert with_transcripts(page, tmp_path) == page
