"""What runs in a child process that will compute: torch's library is linked from its first moment on."""

from __future__ import annotations

import sys

from graftlm.processes.linking import start_linking, wait_for_linking


def main() -> int:
    start_linking()
    from graftlm.processes.child import main as serve_parent

    try:
        return serve_parent()
    finally:
        wait_for_linking()  # no library goes while another comes


if __name__ == "__main__":
    sys.exit(main())
