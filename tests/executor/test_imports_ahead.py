"""What a process that computes imports ahead of its plan: all of torch's behaviour, without all of its code."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest

from graftlm.executor.imports_ahead import TRIED_RELEASES


def run_python(code: str) -> object:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


AHEAD = (
    "import json, sys, msgspec\n"
    "from graftlm.executor.imports_ahead import import_ahead\n"
    "from graftlm.plugins.deferred_imports import deferred, import_deferred\n"
    "import_ahead(msgspec.msgpack.encode([]))\nimport torch\n"
)
#: What tells whether torch is whole: its modules, and the operations for which compilers know shapes.
WHOLE = (
    "keys = ('aten::isin.Tensor_Tensor', 'aten::_foreach_norm.Scalar', 'aten::grid_sampler_2d')\n"
    "names = [n for n in sys.modules if n.partition('.')[0] in ('torch', 'torchgen')]\n"
    "def whole(): return {'modules': sorted(names),\n"
    "  'meta': [torch._C._dispatch_has_kernel_for_dispatch_key(k, 'Meta') for k in keys],\n"
    "  'export': torch.export.export.__module__,\n"
    "  'shown': [torch.vmap is torch.func.vmap, torch.cond is torch._higher_order_ops.cond]}\n"
)


def test_the_installed_torch_was_tried():
    """Whoever moves to another release of torch tries the deferred parts with it, and adds it to the list."""
    assert importlib.metadata.version("torch").startswith(TRIED_RELEASES)


def test_torch_computes_without_what_is_deferred():
    """Layers, inference and a dispatch mode run, and touch nothing of it."""
    waiting = run_python(
        AHEAD
        + "from torch.utils._python_dispatch import TorchDispatchMode\n"
        + "with torch.inference_mode():\n"
        + "    y = torch.nn.functional.scaled_dot_product_attention(*[torch.randn(1, 2, 4, 8)] * 3)\n"
        + "    y = torch.nn.Linear(8, 4)(y).softmax(-1).topk(2)\n"
        + "    torch.multinomial(torch.rand(4), 2)\n"
        + "print(json.dumps(deferred()))"
    )
    assert "torch._meta_registrations" in waiting
    assert "torch.export" in waiting


def test_nothing_that_is_imported_beside_torchs_library_waits_for_it():
    """Libraries are linked one at a time: those that these imports want are loaded before, all but ZeroMQ's."""
    found = run_python(
        "import json, sys, msgspec\n"
        "from graftlm.executor import imports_ahead\nfrom graftlm.processes import linking\n"
        "linking._library = lambda: 'no such library'\n"
        "linking.start_linking().wait()\n"
        "def libraries():\n"
        "    files = {n: str(getattr(m, '__file__', '')) for n, m in sys.modules.items()}\n"
        "    return {n for n, file in files.items() if file.endswith('.so')}\n"
        "before = libraries()\n"
        "import_them = imports_ahead._import\n"
        "def stop(names):\n"
        "    if 'torch' not in names: return import_them(names)\n"
        "    print(json.dumps([sorted(libraries() - before), 'torch' in sys.modules, len(before)]))\n"
        "    sys.exit()\n"
        "imports_ahead._import = stop\n"
        "imports_ahead.import_ahead(msgspec.msgpack.encode(['graftlm.engine.core_process']))"
    )
    assert found[:2] == [["zmq.backend.cython._zmq"], False]
    assert found[2] > 5


def test_touched_it_is_the_torch_that_everybody_imports():
    """After the first touch there are the modules, and the registrations, of a plain `import torch`."""
    plain = run_python("import json, sys, torch\n" + WHOLE + "print(json.dumps(whole()))")
    ours = run_python(AHEAD + "torch.export\nimport_deferred('a test')\n" + WHOLE + "print(json.dumps(whole()))")
    assert set(plain["modules"]) <= set(ours["modules"])
    assert ours["meta"] == plain["meta"] == [True, True, True]
    assert ours["export"] == plain["export"]
    assert ours["shown"] == plain["shown"] == [True, True]


def test_deferred_it_lacks_what_a_compiler_wants():
    """So that the test above can fail: before the touch those registrations are not there."""
    ours = run_python(
        AHEAD + "print(json.dumps(torch._C._dispatch_has_kernel_for_dispatch_key('aten::grid_sampler_2d', 'Meta')))"
    )
    assert ours is False


@pytest.mark.parametrize(
    "touch",
    [
        "import torch._dynamo",
        "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2))",
        "torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1).step()",
        "import torch.ao.quantization.fx",
        "import torch.utils.checkpoint, torch._functorch.aot_autograd",
        "import torch.distributions.normal as n; assert n.Normal is torch.distributions.Normal",
        "assert torch.vmap(lambda x: x.sum())(torch.ones(2, 3)).tolist() == [3.0, 3.0]",
        "assert torch.func.grad(lambda x: x * x)(torch.tensor(3.0)).item() == 6.0",
        "torch.cond(torch.tensor(True), torch.sin, torch.cos, (torch.ones(2),))",
        "torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged).sum()",
        "list(torch.utils.data.DataLoader([1, 2, 3], num_workers=2))",
        "with torch.profiler.profile() as p: torch.ones(2) + 1\np.key_averages()",
    ],
)
def test_whatever_else_is_done_with_torch_works(touch):
    """What compiles, trains, exports or quantizes finds the torch that it needs, whichever door it takes."""
    assert run_python(AHEAD + touch + "\nprint(json.dumps(deferred()))") == []


@pytest.mark.parametrize(
    "touch",
    [
        "import ssl; ssl.create_default_context()",
        "from unittest import mock; mock.patch.object(torch, 'x', 1, create=True).start(); assert torch.x == 1",
        "import difflib; assert difflib.get_close_matches('on', ['one'])",
        "import tarfile, io; tarfile.open(fileobj=io.BytesIO(), mode='w:gz')",
        "import asyncio; asyncio.run(asyncio.sleep(0))",
        "import asyncio.sslproto, unittest.async_case, http.client, urllib.request, ftplib, doctest, shutil",
    ],
)
def test_pythons_own_library_works_and_leaves_torchs_parts_alone(touch):
    """What of it is deferred is loaded by whoever touches it, and nothing of torch with it."""
    before = run_python(AHEAD + "print(json.dumps(deferred()))")
    after = run_python(AHEAD + touch + "\nprint(json.dumps(deferred()))")
    assert [name for name in after if "torch" in name] == [name for name in before if "torch" in name]
    assert len(after) < len(before)
    assert run_python(AHEAD + touch + "\nimport_deferred('a test')\nprint(json.dumps(deferred()))") == []


@pytest.mark.demo
def test_verifying_ops_needs_no_plugin():
    """`--verify-ops` draws its numbers in a process where nothing but the engine's own code runs."""
    command = [sys.executable, "-m", "graftlm", "run", "demo", "--verify-ops", "-p", "hi", "--max-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.demo
def test_answering_touches_nothing_of_it():
    """An engine without plugins answers without the parts that it left out of torch."""
    command = [
        sys.executable,
        "-m",
        "graftlm",
        "run",
        "demo",
        "--log-level",
        "debug",
        "-p",
        "hi",
        "--max-tokens",
        "3",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "engine core" in done.stderr
    assert "deferred" not in done.stderr
