"""The page of a simulated run."""

from __future__ import annotations

from headrace.simulate.page import page


def test_a_page_escapes_its_title(simulated_run):
    assert '<script>' not in page(simulated_run(), {}, title='<script>')
