"""Environment variables of Google's credentials."""

from __future__ import annotations

VARIABLES = ('GCS_KEY', 'GCS_SECRET', 'GOOGLE_APPLICATION_CREDENTIALS', 'GOOGLE_CLOUD_PROJECT', 'STORAGE_EMULATOR_HOST')
