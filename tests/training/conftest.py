"""Prints how often what was killed, at the end, also where the tests ran in several processes."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in getattr(report, "user_properties", ()):
            if name == "kills" and report.when == "call":
                terminalreporter.write_line(f"{value} ({report.duration:.0f} s)")
