"""Environments of stores: credentials of a test, and nothing of the user's own configuration."""

from __future__ import annotations

import os

import pytest

from tests.support.stores.google_settings import VARIABLES


@pytest.fixture(autouse=True)
def databricks_environment(workspace, monkeypatch, tmp_path):
    """The workspace's own credentials; nothing of the user's configuration."""
    for name in list(os.environ):
        if name.startswith(('DATABRICKS_', 'ARM_', 'GOOGLE_')):
            monkeypatch.delenv(name)
    monkeypatch.setenv('HOME', str(tmp_path))
    for name, value in workspace.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def azure_environment(monkeypatch):
    """The emulator's account, and nothing of the user's own configuration."""
    for name in list(os.environ):
        if name.startswith('AZURE_'):
            monkeypatch.delenv(name)
    monkeypatch.setenv('AZURE_ACCOUNT_NAME', 'devstoreaccount1')


@pytest.fixture(autouse=True)
def no_google_settings(monkeypatch, tmp_path):
    """No credentials but those that a test sets."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('CLOUDSDK_CONFIG', str(tmp_path / 'no-gcloud'))
    monkeypatch.setenv('NO_GCE_CHECK', 'true')


@pytest.fixture(autouse=True)
def oci_environment(oci_config_file, monkeypatch):
    """A profile that the server knows, and nothing of the user's own configuration."""
    for name in list(os.environ):
        if name.startswith('OCI_'):
            monkeypatch.delenv(name)
    monkeypatch.setenv('OCI_CONFIG_FILE', str(oci_config_file))
