"""Unpacks a commit into a folder with an environment of its own, cheaply: every other package is a link to ours.

Nothing is written into the repository or into this environment. Native kernels are built only where asked for.
"""

from __future__ import annotations

import compileall
import fnmatch
import io
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.commands import run_alone
from graftlm.contracts.errors import GraftlmError

#: What each checkout brings itself.
_OWN = ("graftlm", "graftlm-*.dist-info", "__editable__*graftlm-*", "__pycache__")
_KERNEL_PACKAGE = "kernels/src/graftlm_kernels"
_KERNELS = ("graftlm_kernels", "graftlm_kernels-*.dist-info", "__editable__*graftlm_kernels*")


class Checkout(msgspec.Struct, frozen=True):
    """One commit, ready to run."""

    commit: str
    subject: str
    python: str


def git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise GraftlmError(f"`git {' '.join(words)}` failed in {repository}: {done.stderr.strip()}")
    return done.stdout.strip()


def commit_of(repository: Path, revision: str) -> str:
    """Return the commit of a revision; raises GraftlmError."""
    try:
        return git(repository, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except GraftlmError:
        shallow = git(repository, "rev-parse", "--is-shallow-repository") == "true"
        cure = "this clone is shallow: `git fetch --unshallow`" if shallow else "see `git log`"
        raise GraftlmError(f"{revision!r} is no commit of {repository}; {cure}") from None


def differ(repository: Path, one: str, other: str, folder: str) -> bool:
    """Tell whether two commits differ inside a folder."""
    return git(repository, "diff", "--name-only", one, other, "--", folder) != ""


def installed_kernels_are_of(repository: Path, commit: str) -> bool:
    """Tell whether the Python of the installed kernels is that of a commit; the compiled part is not compared."""
    tracked = git(repository, "ls-tree", "-r", "--name-only", commit, _KERNEL_PACKAGE).splitlines()
    for name in [name for name in tracked if name.endswith(".py")]:
        installed = Path(sysconfig.get_path("platlib")) / name.removeprefix("kernels/src/")
        if not installed.is_file() or installed.read_text().strip() != git(repository, "show", f"{commit}:{name}"):
            return False
    return True


def check_out(repository: Path, revision: str, folder: Path, *, build_kernels: bool) -> Checkout:
    """Unpack a commit into `folder` and install it there; raises GraftlmError with pip's last words."""
    commit = commit_of(repository, revision)
    source = folder / "source"
    unpack(repository, commit, source)
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    own = (*_OWN, *_KERNELS) if build_kernels else _OWN
    link_packages(environment, leave_out=own)
    python = str(environment / "bin" / "python")
    # setuptools is among the links, so nothing is fetched for the engine; the kernels name what builds them.
    install(python, "--no-build-isolation", "--no-index", "--editable", str(source))
    if build_kernels:
        install(python, str(source / "kernels"))
    compileall.compile_dir(source / "src", quiet=2)
    return Checkout(commit, git(repository, "log", "-1", "--format=%s", commit), python)


def unpack(repository: Path, commit: str, folder: Path) -> None:
    done = subprocess.run(["git", "-C", str(repository), "archive", commit], capture_output=True)
    if done.returncode != 0:
        raise GraftlmError(f"`git archive {commit}` failed: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def link_packages(environment: Path, *, leave_out: Sequence[str]) -> None:
    """Link what is installed here into another environment."""
    (target,) = environment.glob("lib/python*/site-packages")
    for place in dict.fromkeys(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")):
        for entry in place.iterdir():
            if not any(fnmatch.fnmatch(entry.name, pattern) for pattern in leave_out):
                (target / entry.name).symlink_to(entry)


def install(python: str, *words: str) -> None:
    command = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-deps",
               "--disable-pip-version-check", *words]  # fmt: skip
    done = run_alone(command)
    if done.returncode != 0:
        raise GraftlmError(f"{words[-1]} could not be installed: {done.stderr.strip()[-1500:]}")
