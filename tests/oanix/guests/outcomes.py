"""Runs unittest modules in a CPython for WASI, and prints each test's outcome as JSON."""

import json
import sys
import unittest
from typing import Any


class Outcomes(unittest.TestResult):
    """Notes a word for each test."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.found.setdefault(test.id(), "ok")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.found[test.id()] = "skipped"

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        super().addFailure(test, error)
        self.found[test.id()] = "failed"

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        super().addError(test, error)
        self.found[test.id()] = "error"

    def addExpectedFailure(self, test: unittest.TestCase, error: Any) -> None:
        self.found[test.id()] = "expected failure"

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, error: Any) -> None:
        if error is not None:
            super().addSubTest(test, subtest, error)
            self.found[test.id()] = "failed"


outcomes = Outcomes()
unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:]).run(outcomes)
for _, text in outcomes.failures + outcomes.errors:
    print(text, file=sys.stderr)
print(json.dumps(outcomes.found))
