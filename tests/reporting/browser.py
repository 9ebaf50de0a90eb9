"""Headless Chromium, driven by selenium."""

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync --hide-scrollbars"
).split()


class Browser:
    """A page in Chromium, its console messages and its network requests."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, *, width: int = 1200, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(page.resolve().as_uri())

    def said(self) -> list[Any]:
        """Errors and warnings on the console, including violations of the content security policy."""
        found: list[Any] = self.driver.get_log("browser")
        return found

    def asked_for(self) -> set[str]:
        """Every URL that the page has loaded, except data: URLs."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return {url for url in sent if not url.startswith("data:")}

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def screenshot(self, path: Path, height: int | None = None) -> Path:
        """A screenshot of the whole page, or of its top."""
        width, whole = self.script("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height or whole, 12_000), "scale": 1}
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def printed(self) -> bytes:
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with its own profile. Without Chromium the test is skipped; under CI it fails."""
    program, control = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or control is None:
        why = "no chromium and chromedriver here (make packages installs them as root): the page is not looked at"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(why)
        pytest.skip(why)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(control))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
