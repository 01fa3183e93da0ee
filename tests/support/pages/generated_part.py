"""Parts of the docs' pages that programs write."""

from pathlib import Path


def replace_part(page: Path, name: str, text: str) -> None:
    """Put text between the comments ``<!-- name -->`` and ``<!-- end -->`` of a page, in place of what is there."""
    begin, end = f'<!-- {name} -->\n', '<!-- end -->'
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f'{page} needs the lines {begin.strip()} and {end}, in that order.')
    page.write_text(f'{before}{begin}{text}{end}{after}')
