"""What a process of ours leaves of a library for later, and who gets it then."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run_python(code: str) -> str:
    """Run `code` in a fresh interpreter; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package whose `heavy` notes that it ran, and whose `last` needs `heavy` and `aside`."""
    folder = tmp_path / "lib"
    package = folder / "biglib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "ran = []\nfrom biglib import heavy as heavy\nimport biglib.aside\nfrom biglib import last as last\n"
    )
    (package / "heavy.py").write_text("import biglib\nbiglib.ran.append('heavy')\nvalue = 1\n")
    (package / "aside").mkdir()
    (package / "aside" / "__init__.py").write_text("import biglib\nbiglib.ran.append('aside')\n")
    (package / "aside" / "inner.py").write_text("import biglib\nbiglib.ran.append('inner')\nthing = 2\n")
    (package / "last.py").write_text("import biglib\nbiglib.ran.append('last')\n")
    (folder / "somebody.py").write_text("import biglib\nseen = list(biglib.ran)\n")
    (package / "broken.py").write_text("raise RuntimeError('this part is broken')\n")
    return str(folder)


def started(library: str, then: str, names: str = "'biglib.heavy', 'biglib.aside', 'biglib.last'") -> str:
    return run_python(
        f"import sys\nsys.path.insert(0, {library!r})\n"
        "from graftlm.plugins.deferred_imports import before_plugin_code, deferred, deferring, import_deferred\n"
        f"with deferring([{names}], library='biglib', beside=[]):\n    import biglib\n" + textwrap.dedent(then)
    )


def test_what_is_deferred_has_not_run(library):
    """The library is imported, its deferred parts are there as modules, and none of their code has run."""
    out = started(library, "print(biglib.ran, deferred(), biglib.heavy.__file__.endswith('heavy.py'))")
    assert out == "[] ['biglib.heavy', 'biglib.aside', 'biglib.last'] True\n"


@pytest.mark.parametrize(
    "touch",
    ["biglib.heavy.value", "__import__('biglib.aside.inner')", "hasattr(biglib.last, 'no_such_thing')"],
    ids=["attribute", "submodule", "unknown attribute"],
)
def test_the_first_touch_loads_all_in_order(library, touch):
    """Whoever touches one part gets every part, in the order in which the library would have run them."""
    out = started(library, f"{touch}\nprint(biglib.ran[:3], deferred(), type(biglib.heavy).__name__)")
    assert out == "['heavy', 'aside', 'last'] [] module\n"


LENT = """
import biglib.lender
print(biglib.double is biglib.lender.double, deferred(), biglib.ran)
first = biglib.double
{then}
print(deferred(), biglib.ran, biglib.double is biglib.lender.double, first(4), first.__name__, first.__module__)
"""


@pytest.mark.parametrize(
    "then", ["assert first(3) == 6", "import_deferred('a test')", "biglib.lender.other", "import biglib.last"]
)
def test_a_function_that_is_lent_gives_way_to_the_real_one(library, tmp_path, then):
    """The library got a stand-in under its own name: it works, and is gone as soon as everything is loaded."""
    (tmp_path / "lib" / "biglib" / "__init__.py").write_text(
        "ran = []\nfrom biglib.lender import double as double\n"
    )
    (tmp_path / "lib" / "biglib" / "lender.py").write_text(
        "import biglib\nbiglib.ran.append('lender')\nother = 1\ndef double(x):\n    return 2 * x\n"
    )
    out = run_python(
        f"import sys\nsys.path.insert(0, {library!r})\n"
        "from graftlm.plugins.deferred_imports import deferred, deferring, import_deferred\n"
        "lent = {'biglib.lender': ('double',)}\n"
        "with deferring(['biglib.lender'], library='biglib', beside=[], lent=lent):\n    import biglib\n"
        + LENT.format(then=then)
    )
    before, after = out.splitlines()
    assert before == "True ['biglib.lender'] []"
    ran = "['lender', 'last']" if "last" in then else "['lender']"
    assert after == f"[] {ran} True 8 double biglib.lender"


@pytest.mark.parametrize("name", ["biglib.aside.inner", "biglib.plain"])
def test_more_of_the_library_is_imported_once_and_last(library, tmp_path, name):
    """An import of any other part gets everything first, and runs no module a second time."""
    (tmp_path / "lib" / "biglib" / "plain.py").write_text("import biglib\nbiglib.ran.append('plain')\n")
    then = f"""
    import importlib
    found = importlib.import_module({name!r})
    print(biglib.ran, found is sys.modules[{name!r}], found.__spec__.loader.__class__.__name__)
    print(importlib.import_module("biglib.aside.inner").thing, biglib.ran.count("aside"), len(sys.meta_path))
    """
    before = run_python("import sys; print(len(sys.meta_path))").strip()
    first, second = started(library, then).splitlines()
    assert first == f"['heavy', 'aside', 'last', {name.rpartition('.')[2]!r}] True SourceFileLoader"
    assert second == f"2 1 {before}"


def test_a_module_that_a_deferred_one_imports_is_the_same_for_all(library, tmp_path):
    """A part whose own code imports what somebody is just asking for hands over what it imported."""
    (tmp_path / "lib" / "biglib" / "aside" / "__init__.py").write_text("from biglib.aside import inner\n")
    then = """
    import biglib.aside.inner as inner
    print(biglib.ran, inner is biglib.aside.inner, inner.__spec__.name, inner.__spec__.loader.__class__.__name__)
    """
    assert started(library, then) == "['heavy', 'inner', 'last'] True biglib.aside.inner SourceFileLoader\n"


def test_plugin_code_meets_the_whole_library(library):
    """Before a plugin's first module is imported everything is loaded; before the engine's own nothing is."""
    then = """
    from graftlm.plugins.resolve import resolve_class_path
    resolve_class_path("graftlm.version:__version__")
    print(biglib.ran)
    print(resolve_class_path("somebody:seen"))
    """
    assert started(library, then) == "[]\n['heavy', 'aside', 'last']\n"


def test_code_that_a_library_brings_in_meets_all_that_was_asked_for(library, tmp_path):
    """A package that is not the library's, such as a device's extension of it, finds everything loaded so far."""
    init = tmp_path / "lib" / "biglib" / "__init__.py"
    init.write_text(init.read_text().replace("from biglib import last", "import somebody\nfrom biglib import last"))
    assert (
        started(library, "print(sys.modules['somebody'].seen, biglib.ran)")
        == "['heavy', 'aside'] ['heavy', 'aside']\n"
    )


def test_a_look_through_all_modules_touches_nothing(library):
    """`inspect` asks every module for its file; that is no use of it."""
    assert started(library, "import inspect; inspect.getmodule(sys._getframe()); print(biglib.ran)") == "[]\n"


def test_a_part_that_fails_fails_for_whoever_touches_it(library, tmp_path):
    """Its own error is raised, not one of ours, and the module is gone as after any import that failed."""
    init = tmp_path / "lib" / "biglib" / "__init__.py"
    init.write_text(init.read_text() + "import biglib.broken\n")
    then = """
    try:
        biglib.broken.value
    except RuntimeError as error:
        print(error, "biglib.broken" in sys.modules)
    """
    assert started(library, then, names="'biglib.broken'") == "this part is broken False\n"


def test_two_threads_that_touch_wait_for_each_other(library, tmp_path):
    """A module that another thread is loading is waited for, not met half loaded."""
    (tmp_path / "lib" / "biglib" / "heavy.py").write_text("import time\ntime.sleep(0.2)\nvalue = 1\n")
    then = """
    import threading
    found = []
    threads = [threading.Thread(target=lambda: found.append(biglib.heavy.value)) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(found)
    """
    assert started(library, then) == "[1, 1, 1, 1]\n"


def test_another_thread_imports_while_the_rest_is_loaded(library, tmp_path):
    """Whoever imports more of the library waits for it, and keeps nobody else from importing meanwhile.

    Not even the thread that loads: the two would wait for each other.
    """
    (tmp_path / "lib" / "turns.py").write_text(
        "import threading\nloading, waiting, imported = (threading.Event() for _ in range(3))\n"
    )
    (tmp_path / "lib" / "biglib" / "heavy.py").write_text(
        "import turns\nturns.loading.set()\nassert turns.imported.wait(60)\nimport plistlib\nvalue = 1\n"
    )
    (tmp_path / "lib" / "biglib" / "plain.py").write_text("import biglib\nseen = biglib.heavy.value\n")
    then = """
    import threading, turns
    from graftlm.plugins import deferred_imports
    assert "plistlib" not in sys.modules and "sched" not in sys.modules
    def touch():
        biglib.heavy.value
    def more():
        turns.loading.wait()
        import biglib.plain
        print(biglib.plain.seen, biglib.plain.__spec__.loader.__class__.__name__)
    def takes_lock(reason, takes=deferred_imports._takes_lock):
        if reason == "biglib.plain":
            turns.waiting.set()
        return takes(reason)
    deferred_imports._takes_lock = takes_lock
    threads = [threading.Thread(target=function) for function in (touch, more)]
    [thread.start() for thread in threads]
    turns.waiting.wait()
    import sched
    print(biglib.ran)
    turns.imported.set()
    [thread.join() for thread in threads]
    """
    assert started(library, then) == "[]\n1 SourceFileLoader\n"


def test_only_looking_for_a_part_loads_nothing(library):
    """It is found as its own loader's, and what is not there is not found."""
    then = """
    import importlib.util
    spec = importlib.util.find_spec("biglib.broken")
    print(spec.origin.endswith("broken.py"), "broken" in spec.loader.get_source("biglib.broken"), biglib.ran)
    print(importlib.util.find_spec("biglib.no_such"), importlib.util.find_spec("nosuch"))
    """
    assert started(library, then) == "True True []\nNone None\n"


def test_a_stand_in_whose_module_fails_raises_its_error(library, tmp_path):
    """Each call tells why: the module is gone after the first one, as after any import that failed."""
    (tmp_path / "lib" / "biglib" / "__init__.py").write_text("from biglib.broken import double as double\n")
    out = run_python(
        f"import sys\nsys.path.insert(0, {library!r})\n"
        "from graftlm.plugins.deferred_imports import deferring\n"
        "with deferring(['biglib.broken'], library='biglib', beside=[], lent={'biglib.broken': ('double',)}):\n"
        "    import biglib\n"
        "for _ in range(2):\n"
        "    try: biglib.double(1)\n"
        "    except RuntimeError as error: print(error)\n"
    )
    assert out == "this part is broken\n" * 2


@pytest.mark.parametrize("more", ["biglib.aside.inner", "wanted"])
def test_two_threads_that_want_what_the_other_imports_both_go_on(library, tmp_path, more):
    """One loads the rest and wants a module that the other is importing, which waits for the rest."""
    (tmp_path / "lib" / "biglib" / "aside" / "__init__.py").write_text(
        "import time\ntime.sleep(0.5)\nfrom biglib.aside import inner\nimport wanted\n"
    )
    (tmp_path / "lib" / "wanted.py").write_text(
        "import time, biglib\ntime.sleep(0.3)\nseen = biglib.last.__name__, hasattr(biglib.last, 'value')\n"
    )
    (tmp_path / "lib" / "biglib" / "last.py").write_text("value = 3\n")
    then = f"""
    import threading, time
    found = []
    def touch():
        found.append(biglib.heavy.value)
    def more():
        time.sleep(0.25)
        import {more}
        found.append({more}.__name__)
    threads = [threading.Thread(target=function) for function in (touch, more)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(found), deferred(), sys.modules["wanted"].seen)
    """
    assert started(library, then) == "2 [] ('biglib.last', True)\n"
