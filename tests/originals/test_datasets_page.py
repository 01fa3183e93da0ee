"""The commands and programs of docs/datasets.md run as they are written, and print what stands there."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from headrace import MDSWriter
from headrace.cli import main
from tests.support.originals.text_originals import make_c4, make_enwiki, make_pile
from tests.support.originals.text_tokenizer import make_tokenizer
from tests.support.originals.vision_originals import make_ade20k, make_cifar10, make_coco, make_imagenet
from tests.support.servers.image_server import jpeg

PAGE = (Path(__file__).parents[2] / 'docs' / 'datasets.md').read_text()
BLOCK = re.compile(r'```console\n\$ (.*?)\n(.*?)```|```python\n(.*?)```\n\n```text\n(.*?)```', re.DOTALL)


def without_figures(text: str) -> str:
    """Sizes, times and rates differ from machine to machine; the messages of decoders, from version to version."""
    text = re.sub(r'[\d,.]+ (bytes|kB|MB|s|rows/s|kB/s|MB/s)\b', '#', text)
    return re.sub(r'(FormatError: .*?)cannot be read: .*', r'\1', text)


def test_commands_and_programs_print_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ('av', 'mwparserfromhell', 'transformers'):
        pytest.importorskip(package)
    from tests.support.originals.webvid_originals import make_webvid

    makers = {'imagenet': make_imagenet, 'cifar': make_cifar10, 'coco': make_coco, 'ade': make_ade20k}
    texts = {'c4': make_c4, 'pile': make_pile, 'enwiki': make_enwiki}
    for name, make in {**makers, 'webvid': make_webvid, **texts}.items():
        make(tmp_path / name)
    make_tokenizer(tmp_path / 'tokenizer')
    with MDSWriter(out=str(tmp_path / 'laion-mds'), columns={'jpg': 'bytes', 'caption': 'str'}) as writer:
        for number in range(4):
            writer.write({'jpg': jpeg(number, 256, 256), 'caption': f'caption {number}'})
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == PAGE.count('```console') + PAGE.count('```python') == 17
    for command, said, program, printed in blocks:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            if command:
                assert main(shlex.split(command)[1:]) == 0
            else:
                exec(compile(program, 'docs/datasets.md', 'exec'), {'__name__': '__main__'})
        written = map(re.escape, without_figures(said or printed).split('...\n'))
        assert re.fullmatch('(?s:.*)'.join(written), without_figures(shown.getvalue()))
