"""The `harness` command: one place where errors are printed and exit codes chosen."""

from __future__ import annotations

import logging
import sys
import traceback

import click

from harness.errors import HarnessError

_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with 0 done, 1 the answer is no, 2 usage or configuration, 130 interrupted."""
    from harness.cli import cli  # noqa: PLC0415 - errors while importing a command are printed here too

    debug = "--debug" in sys.argv
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(_INTERRUPTED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except HarnessError as error:
        logging.getLogger("harness").debug("the command failed", exc_info=True)
        if debug:
            traceback.print_exc()
        click.echo(f"harness: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing to say, and nobody to say it to
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
