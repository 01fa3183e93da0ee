"""Parts of tests, also for third parties: contract suites, a proxy that breaks connections, the resume oracle."""

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.testing.compressions import CompressionContract
    from headrace.testing.encodings import EncodingCase, EncodingContract
    from headrace.testing.sources import SourceCase, SourceContract
    from headrace.testing.store_faults import StoreFaultContract
    from headrace.testing.stores import StoreContract

__all__ = [
    'CompressionContract',
    'EncodingCase',
    'EncodingContract',
    'SourceCase',
    'SourceContract',
    'StoreContract',
    'StoreFaultContract',
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            'CompressionContract': 'headrace.testing.compressions',
            'EncodingCase': 'headrace.testing.encodings',
            'EncodingContract': 'headrace.testing.encodings',
            'SourceCase': 'headrace.testing.sources',
            'SourceContract': 'headrace.testing.sources',
            'StoreContract': 'headrace.testing.stores',
            'StoreFaultContract': 'headrace.testing.store_faults',
        },
    )
