"""`python -m graftlm` is the `graftlm` command."""

from graftlm.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
