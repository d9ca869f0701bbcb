"""The base of every conformance suite: checks as methods, run by pytest or in process; knows no contract.

A suite needs no pytest: what does not apply is a `unittest.SkipTest`, which pytest shows as skipped.
"""

from __future__ import annotations

import dataclasses
import sys
import traceback
import unittest
from typing import Any, ClassVar, NoReturn

from graftlm.plugins.resolve import path_of, resolve_class_path


class ContractBroken(AssertionError):
    """What was tested does not do what its contract wants."""

    def __init__(self, subject: str, *, contract: str, wants: str, problem: str) -> None:
        super().__init__(f"{subject}: {problem}\n  {contract} wants: {wants}")


class NotDeclared(unittest.SkipTest):
    """What was tested does not declare the capability that a check is about."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check: "passed", "skipped", or "failed" with the text of its error."""

    check: str
    state: str
    text: str = ""


class Suite:
    """Subclass it in a test module and name what is to be tested: `subject = MyClass`, or "module:MyClass"."""

    #: The contract's public name, for messages.
    contract: ClassVar[str] = ""
    #: The object to test, or its path, which is imported when the first check runs.
    subject: ClassVar[Any] = None
    #: Which plugin of which distribution brings it, where that is known; for messages.
    declared_as: ClassVar[str] = ""

    @classmethod
    def load(cls) -> Any:
        """Return the object to test."""
        subject = cls.subject
        if subject is None:
            raise TypeError(
                f"{cls.__name__} names nothing to test; write `subject = MyClass` or `subject = 'module:MyClass'`"
            )
        return resolve_class_path(subject, what=f"{cls.__name__}.subject") if isinstance(subject, str) else subject

    @classmethod
    def subject_path(cls) -> str:
        """Return how another process imports the object to test; NotDeclared where it cannot."""
        path = path_of(cls.load())
        if path is None:
            raise NotDeclared("it is no module's attribute, so that no other process can import it")
        return path

    @classmethod
    def subject_name(cls) -> str:
        subject = cls.load()
        name = path_of(subject) or repr(subject)
        return f"{name} ({cls.declared_as})" if cls.declared_as else name

    def require(self, holds: bool, problem: str) -> None:
        """Fail with `problem`, and with what the running check says that the contract wants."""
        if not holds:
            self.fail(problem)

    def complete_class(self, base: type[Any]) -> Any:
        """Return the class to test, which must subclass `base` and leave nothing abstract."""
        cls = self.load()
        self.require(isinstance(cls, type) and issubclass(cls, base), f"it is {cls!r}; subclass {base.__name__}")
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        self.require(not missing, f"it does not implement {missing}")
        return cls

    def fail(self, problem: str) -> NoReturn:
        raise ContractBroken(self.subject_name(), contract=self.contract, wants=self._wanted(), problem=problem)

    def _wanted(self) -> str:
        """Return the first paragraph of the running check's docstring."""
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_name.startswith("test_"):
            frame = frame.f_back  # type: ignore[assignment]
        text = "" if frame is None else getattr(type(self), frame.f_code.co_name, None).__doc__ or ""
        return " ".join(text.split("\n\n")[0].split())

    @classmethod
    def checks(cls) -> list[str]:
        """Name the checks in the order in which they are written, the base's first."""
        names: dict[str, None] = {}
        for base in reversed(cls.__mro__):
            names.update(dict.fromkeys(name for name in vars(base) if name.startswith("test_")))
        return list(names)

    @classmethod
    def run(cls) -> list[CheckResult]:
        """Run every check in this process, without pytest, and say what came of each."""
        return [cls.run_check(name) for name in cls.checks()]

    @classmethod
    def run_check(cls, name: str) -> CheckResult:
        """Run one check in this process, without pytest."""
        try:
            getattr(cls(), name)()
        except unittest.SkipTest as skipped:
            return CheckResult(name, "skipped", str(skipped))
        except ContractBroken as broken:
            return CheckResult(name, "failed", str(broken))
        except Exception:
            return CheckResult(name, "failed", traceback.format_exc())
        return CheckResult(name, "passed")


def failures(suite: type[Suite]) -> dict[str, str]:
    """Run `suite` and return what failed, check by check, with its message."""
    return {result.check: result.text for result in suite.run() if result.state == "failed"}
