"""`streaming.base.storage`: single files from and to stores."""

from __future__ import annotations

from headrace.compat.names import Alias, Entry, Tables, absent, alias

__all__ = ['TABLES']


def _each(target: str, difference: str, *names: str) -> dict[str, Entry]:
    return {name: Alias(f'headrace.compat.cloud:{target}', difference) for name in names}


_DOWNLOADERS: dict[str, Entry] = {
    **alias(
        'headrace.compat.cloud',
        'CloudDownloader',
        difference='One class downloads from all stores. To add one, call `headrace.storage.register_store`.',
    ),
    **_each(
        'CloudDownloader',
        'The same class as `CloudDownloader`; the URL tells the store.',
        'AzureDataLakeDownloader',
        'AzureDownloader',
        'DBFSDownloader',
        'DatabricksUnityCatalogDownloader',
        'GCSDownloader',
        'HFDownloader',
        'LocalDownloader',
        'OCIDownloader',
        'S3Downloader',
        'SFTPDownloader',
    ),
}
_UPLOADERS: dict[str, Entry] = {
    **alias(
        'headrace.compat.cloud',
        'CloudUploader',
        difference='One class uploads to all stores. A missing bucket shows at the first upload.',
    ),
    **_each(
        'CloudUploader',
        'The same class as `CloudUploader`; the URL tells the store.',
        'AzureDataLakeUploader',
        'AzureUploader',
        'DBFSUploader',
        'DatabricksUnityCatalogUploader',
        'GCSUploader',
        'HFUploader',
        'LocalUploader',
        'OCIUploader',
        'S3Uploader',
    ),
}
_ALIPAN = 'headrace has no store for Alipan. Register one for alipan://: headrace.storage.register_store.'
_ALIPAN_DOWNLOADER = absent(_ALIPAN, 'AlipanDownloader')
_ALIPAN_UPLOADER = absent(_ALIPAN, 'AlipanUploader')
_CREDENTIALS = absent('The environment says how requests are signed: see docs/stores.md.', 'GCSAuthentication')
_DATABRICKS = absent('Use `CloudUploader`.', 'DatabricksUploader')

_OLD = alias('headrace.compat.cloud', 'download_file', difference='A name of earlier versions.')

TABLES: Tables = {
    'streaming.base.storage': {**_OLD, **_DOWNLOADERS, **_UPLOADERS, **_ALIPAN_DOWNLOADER},
    'streaming.base.storage.download': {**_OLD, **_DOWNLOADERS, **_ALIPAN_DOWNLOADER},
    'streaming.base.storage.upload': {**_UPLOADERS, **_ALIPAN_UPLOADER, **_CREDENTIALS, **_DATABRICKS},
}
