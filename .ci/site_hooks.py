"""What mkdocs adds to docs/ for the site: the README as its first page, tutorials, benchmarks, linked files, the API.

After the build, `on_post_build` looks for every public name in the index of the search.

The pages link to files of the repository by their paths, so that they read well there, too. The site holds a copy of
each linked file.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from abc import ABCMeta
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
import jupytext
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / 'examples' / 'tutorials'
PACKAGES = (
    'headrace',
    'headrace.mixing',
    'headrace.lightning',
    'headrace.composer',
    'headrace.accelerate',
    'headrace.transformers',
    'headrace.metrics',
    'headrace.packing',
    'headrace.convert',
    'headrace.convert.ray',
    'headrace.inspect',
    'headrace.simulate',
    'headrace.cli.doctor',
    'headrace.watching',
    'headrace.vision',
    'headrace.text',
    'headrace.multimodal',
    'headrace.format',
    'headrace.storage',
    'headrace.errors',
)
ABSENT = ('accelerate', 'composer', 'lightning', 'pyarrow', 'ray', 'torchmetrics', 'transformers')
"""Packages that the site does without: headrace's modules over them are imported for their names only."""
_LISTS = ('fraction', 'subset', 'where')  # keys whose value is a list
_LINK = re.compile(r'(\]\(|<img src=")(?!https?:|#|mailto:)([^)#" ]+)')


class _Names(ABCMeta):
    """Classes whose attributes are classes like them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return _Names(name, (_Name,), {})


class _Name:
    """What a name of a stand-in is: a class to inherit, index or call."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __class_getitem__(cls, _: Any) -> type:
        return cls


class _StandIn(ModuleType):
    """A module in which every name is a class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return _Names(name, (_Name,), {})


class _StandIns(MetaPathFinder, Loader):
    """Finds a stand-in for each module of a package that is not installed."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        is_absent = fullname.partition('.')[0] in ABSENT
        return ModuleSpec(fullname, self, is_package=True) if is_absent else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_StandIns())  # the last one: what is installed is found before


class Options(griffe.Extension):
    """Gives the classes that take options the texts that `help` shows, and for options as one object the signature."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        init = cls.members.get('__init__')
        if cls.docstring is None or not isinstance(init, griffe.Function):
            return
        if not any(str(decorator.value).startswith('documented(') for decorator in cls.decorators):
            return
        actual = getattr(importlib.import_module(cls.module.path), cls.name)
        cls.docstring.value = actual.__doc__
        if not any(str(decorator.value).startswith('takes(') for decorator in init.decorators):
            return
        init.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    each.name,
                    annotation=None if each.annotation is each.empty else inspect.formatannotation(each.annotation),
                    kind=griffe.ParameterKind[each.kind.name.lower()],
                    default=None if each.default is each.empty else repr(each.default),
                )
                for each in inspect.signature(actual.__init__).parameters.values()
            )
        )


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files that are not in docs/."""
    files.append(File.generated(config, 'index.md', content=_at_the_top('README.md')))
    for name in ('CHANGELOG.md', 'CONTRIBUTING.md'):
        files.append(File.generated(config, name, content=_at_the_top(name)))
    files.append(File.generated(config, 'api.md', content=_api()))
    files.append(File.generated(config, 'benchmarks/README.md', content=_benchmarks()))
    for notebook in sorted(TUTORIALS.glob('*.ipynb')):
        files.append(File.generated(config, f'tutorials/{notebook.stem}.md', content=_tutorial(notebook)))
    for path in sorted(_linked_files(files)):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have links to files of the repository lead to their copies."""
    if page.file.src_uri.startswith('appendix/'):
        return markdown.replace('](../../', '](../')
    if '/' in page.file.src_uri or page.file.src_uri in {'index.md', 'CHANGELOG.md', 'CONTRIBUTING.md'}:
        return markdown
    markdown = re.sub(r'\]\(\.\./examples/(tutorials/\w+)\.ipynb', r'](\1.md', markdown)
    return markdown.replace('](../README.md', '](index.md').replace('](../', '](')


def on_post_build(config: Any) -> None:
    """Refuse a site whose search leads from a public name to no section of its own.

    Raises:
        PluginError: names are missing, of Python or of the YAML.
    """
    found = json.loads(Path(config['site_dir'], 'search', 'search_index.json').read_text())['docs']
    sections = {entry['location'].partition('#')[2] for entry in found}
    keys = ' '.join(entry['text'] for entry in found if entry['location'].startswith('configuration.html'))
    missing: list[str] = []
    for line in (ROOT / 'tests' / 'data' / 'public_api.txt').read_text().splitlines():
        key = line.removeprefix('yaml: ')
        if key == line:
            name = line.partition('(')[0]
            if not sections & _sections_of(name):
                missing.append(name)
        elif not any(part in _LISTS for part in key.split('.')[:-1]) and key.rpartition('.')[2] not in keys:
            missing.append(key)
    if missing:
        raise PluginError(
            f'The search of the site leads nowhere from {", ".join(missing)}. A name needs a docstring, and its '
            f'package a place in PACKAGES; a key a row in docs/configuration.md.'
        )


def _sections_of(name: str) -> set[str]:
    """The sections that show a public name: its own, or for a method that is inherited that of a base."""
    owner, _, member = name.rpartition('.')
    package, _, class_name = owner.rpartition('.')
    found = {name}
    if class_name[:1].isupper():
        bases = getattr(importlib.import_module(package), class_name).__mro__[1:]
        found |= {f'{other}.{base.__name__}.{member}' for base in bases for other in PACKAGES}
    return found


def _at_the_top(name: str) -> str:
    """A page of the repository's top folder, whose pages in docs/ are beside it in the site."""
    text = (ROOT / name).read_text()
    return _LINK.sub(lambda link: link[1] + link[2].removeprefix('docs/'), text)


def _benchmarks() -> str:
    return (ROOT / 'benchmarks' / 'README.md').read_text().replace('](../docs/', '](../')


def _tutorial(notebook: Path) -> str:
    """The cells of a notebook as a page. Its links lead to other pages."""
    cells: list[str] = []
    for cell in jupytext.read(notebook).cells:
        cells.append(cell.source if cell.cell_type == 'markdown' else f'```python\n{cell.source}\n```')
        for output in cell.get('outputs', ()):
            if output.output_type == 'stream':
                cells.append(f'```text\n{output.text.rstrip()}\n```')
            elif 'image/png' in output.get('data', {}):
                cells.append(f'![](data:image/png;base64,{output.data["image/png"].strip()})')
    return re.sub(r'(\]\(\w+)\.ipynb', r'\1.md', '\n\n'.join(cells)).replace('](../../docs/', '](../')


def _linked_files(files: Files) -> set[str]:
    """Files of the repository that pages link to, other than pages."""
    found = set[str]()
    texts = [re.sub(r'\]\((?!http)', '](../', (ROOT / name).read_text()) for name in ('README.md', 'CONTRIBUTING.md')]
    texts += [
        Path(file.abs_src_path).read_text() for file in files if file.is_documentation_page() and file.abs_src_path
    ]
    for text in texts:
        for link in _LINK.finditer(text):
            path = link[2].rpartition('../')[2]
            if link[2].startswith('../') and not path.startswith('docs/') and (ROOT / path).is_file():
                found.add(path)
    found |= {str(path.relative_to(ROOT)) for path in (ROOT / 'benchmarks').glob('*.png')}
    return {path for path in found if not path.endswith('.md')}


def _api() -> str:
    """A section for each public name of each package that users import."""
    public = {
        package: {name: getattr(module, name) for name in sorted(getattr(module, '__all__', ()))}
        for package in PACKAGES
        for module in [importlib.import_module(package)]
    }
    sections = {id(found) for names in public.values() for found in names.values()}
    lines = ['# API', '', 'Every public name, by the package that users import it from.', '']
    for package, names in public.items():
        lines += [f'## `{package}`', '']
        for name, found in names.items():
            options = f'heading_level: 3, inherited_members: {_inherited(found, sections)}'
            lines += [f'::: {package}.{name}', f'    options: {{{options}}}', '']
    return '\n'.join(lines)


def _inherited(found: Any, sections: set[int]) -> list[str]:
    """The members that a class has from classes of headrace without a section, and that no base with one shows."""
    bases = found.__mro__[1:] if isinstance(found, type) else ()
    shown = {name for base in bases if id(base) in sections for name in dir(base)}
    return sorted(
        {
            name
            for base in bases
            if base.__module__.startswith('headrace.') and id(base) not in sections
            for name in vars(base)
            if not name.startswith('_') and name not in shown
        }
    )
