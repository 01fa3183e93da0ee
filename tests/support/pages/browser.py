"""A headless browser for the tests of pages: Chromium of the system, driven by Selenium."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

__all__ = ['browser', 'wait_until']

_TIME_OUT = 60  # seconds; a busy machine is slow


@contextlib.contextmanager
def browser(*, width: int = 1120, height: int = 900) -> Iterator[Any]:
    """A Selenium driver; the test is skipped without Selenium, Chromium or its driver."""
    webdriver = pytest.importorskip('selenium.webdriver')
    chromium, driver = shutil.which('chromium'), shutil.which('chromedriver')
    if chromium is None or driver is None:
        pytest.skip('Chromium and chromedriver are not installed')
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.page_load_strategy = 'eager'
    for argument in (
        'headless=new',
        'no-sandbox',
        'disable-dev-shm-usage',
        'disable-gpu',
        'disable-background-networking',
        'disable-extensions',
        'no-first-run',
        f'window-size={width},{height}',
    ):
        options.add_argument(f'--{argument}')
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    # Selenium asks a proxy of the environment for 127.0.0.1, too.
    environment = {**os.environ, 'NO_PROXY': '*', 'no_proxy': '*'}
    before = {name: os.environ.get(name) for name in ('NO_PROXY', 'no_proxy')}
    os.environ.update({name: environment[name] for name in before})
    try:
        started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    try:
        yield started
    finally:
        started.quit()


def wait_until(driver: Any, condition: Callable[[Any], Any]) -> Any:
    """Wait until a condition of the driver holds, and return its value."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, _TIME_OUT).until(condition)
