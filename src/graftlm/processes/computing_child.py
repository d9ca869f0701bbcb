"""What runs in a child process that will compute: torch's library is linked from its first moment on."""

from __future__ import annotations

import sys

from graftlm.processes.linking import start_linking


def main() -> int:
    linking = start_linking()
    from graftlm.processes.child import main as serve_parent

    try:
        return serve_parent()
    finally:
        if linking is not None:  # no library goes while another comes
            linking.wait()


if __name__ == "__main__":
    sys.exit(main())
