"""The commands and programs of docs/datasets.md run as they are written, and print what stands there."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from vision_originals import make_ade20k, make_cifar10, make_coco, make_imagenet

from headrace.cli import main

PAGE = (Path(__file__).parents[2] / 'docs' / 'datasets.md').read_text()
BLOCK = re.compile(r'```console\n\$ (.*?)\n(.*?)```|```python\n(.*?)```\n\n```text\n(.*?)```', re.DOTALL)


def without_figures(text: str) -> str:
    """Sizes, times and rates differ from machine to machine; the messages of decoders, from version to version."""
    text = re.sub(r'[\d,.]+ (bytes|kB|MB|s|rows/s|kB/s|MB/s)\b', '#', text)
    return re.sub(r'(FormatError: .*?)cannot be read: .*', r'\1', text)


def test_commands_and_programs_print_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('av')
    from webvid_originals import make_webvid

    makers = {'imagenet': make_imagenet, 'cifar': make_cifar10, 'coco': make_coco, 'ade': make_ade20k}
    for name, make in {**makers, 'webvid': make_webvid}.items():
        make(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == 10
    for command, said, program, printed in blocks:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            if command:
                assert main(shlex.split(command)[1:]) == 0
            else:
                exec(compile(program, 'docs/datasets.md', 'exec'), {'__name__': '__main__'})
        assert without_figures(shown.getvalue()) == without_figures(said or printed)
