"""The role matrix: which process may import which package. One that slips in costs start-up time and memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "transformers", "gguf", "triton", "tokenizers", "fastapi", "pydantic", "uvicorn", "zmq",
         "huggingface_hub", "safetensors", "rich", "jinja2", "prometheus_client", "yaml")  # fmt: skip

#: What is run, and the heavy packages that it may import.
MATRIX = {
    "import graftlm": ("import graftlm", ()),
    "from graftlm import SamplingParams": ("from graftlm import SamplingParams", ()),
    "graftlm --version": ("from graftlm.cli.main import main; assert main(['--version']) == 0", ()),
    "graftlm --help": ("from graftlm.cli.main import main; assert main(['--help']) == 0", ()),
    "graftlm serve --help": ("from graftlm.cli.main import main; assert main(['serve', '--help']) == 0", ()),
    "graftlm run --help": ("from graftlm.cli.main import main; assert main(['run', '--help']) == 0", ()),
    "graftlm preload --help": ("from graftlm.cli.main import main; assert main(['preload', '--help']) == 0", ()),
    "graftlm preload --status": (
        "from graftlm.cli.main import main; assert main(['preload', '--status']) == 0",
        (),
    ),
    "graftlm fetch --help": ("from graftlm.cli.main import main; assert main(['fetch', '--help']) == 0", ()),
    "graftlm bench serve --help": ("from graftlm.cli.main import main; main(['bench', 'serve', '--help'])", ()),
    "graftlm doctor": ("from graftlm.cli.main import main; assert main(['doctor', '--json']) == 0", ()),
    "graftlm plugins": ("from graftlm.cli.main import main; assert main(['plugins', '--json']) == 0", ()),
    "configure": ("import graftlm.engine.configure", ("numpy", "safetensors")),
    "scheduler": ("import graftlm.scheduler", ()),
    "contracts": ("import graftlm.contracts.points, graftlm.contracts.executor, graftlm.contracts.step", ()),
    "front end": ("import graftlm.frontend.async_llm", ("numpy", "tokenizers", "zmq", "jinja2", "safetensors")),
    "HTTP server": (
        "import graftlm.frontend.http.server",
        (
            "numpy",
            "tokenizers",
            "zmq",
            "jinja2",
            "safetensors",
            "fastapi",
            "pydantic",
            "uvicorn",
            "prometheus_client",
        ),
    ),
    "engine core": ("import graftlm.engine.core_process", ("zmq",)),
}


def loaded_by(code: str) -> set[str]:
    """Run `code` in a fresh interpreter and return the top-level packages that it imported."""
    script = (
        f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("process", MATRIX)
def test_a_process_imports_only_what_its_row_allows(process):
    """One row of the matrix in a fresh interpreter."""
    code, allowed = MATRIX[process]

    assert loaded_by(code) & set(HEAVY) - set(allowed) == set()


def test_help_and_version_run_no_plugin_code():
    """The plugin machinery is not even imported for them."""
    machinery = ["graftlm.plugins.host", "graftlm.platforms.bootstrap", "graftlm.engine.configure"]
    code = (
        "import sys\nfrom graftlm.cli.main import main\n"
        "for words in (['--version'], ['--help'], ['serve', '--help']): main(words)\n"
        f"assert not set({machinery}) & set(sys.modules), sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=240)
