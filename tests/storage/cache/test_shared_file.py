"""The folder of files that one process makes for all."""

from __future__ import annotations

import stat

import pytest

from headrace.errors import CacheError
from headrace.storage.cache.control_folder import claim_private_folder


def test_the_private_folder_is_no_link_and_open_to_nobody_else(tmp_path, elsewhere):
    private = tmp_path / 'headrace-0'
    claim_private_folder(private)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    private.chmod(0o777)
    with pytest.raises(CacheError, match='others may write to it'):
        claim_private_folder(private)
    private.rmdir()
    private.symlink_to(elsewhere)
    with pytest.raises(CacheError, match='a symbolic link'):
        claim_private_folder(private)
