"""A headless Chromium (CHROMIUM=path, else the one on the PATH)."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
    return os.environ.get("CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium, or CHROMIUM=path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] * (os.geteuid() == 0))
        yield launched
        launched.close()
