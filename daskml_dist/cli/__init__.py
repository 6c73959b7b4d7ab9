"""Command line: ``python -m daskml_dist COMMAND``. Each public module here is a command.

A command's module has `add_arguments(parser)` and `run(arguments)`, which returns the exit status;
its docstring is the help text.
"""

from __future__ import annotations

import argparse
import pkgutil
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from daskml_dist._version import __version__
from daskml_dist.errors import DaskMLDistError
from daskml_dist.errors.suggestions import suggest_nearest

__all__ = ["COMMANDS", "main"]


#: Names of the commands: the modules of this package without an underscore.
COMMANDS = tuple(
    sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        Default: the process's arguments.

    Returns
    -------
    int
        Exit status. 0: success; 1: failure, with the reason on standard error; 130: interrupted
        (128 + SIGINT). Arguments that are not valid end the process with 2.

    Examples
    --------
    >>> from daskml_dist.cli import main
    >>> main(['fit', 'rows.parquet', '--target', 'label'])  # doctest: +SKIP
    """
    parser = _Parser(
        prog="python -m daskml_dist",
        description="Distributed machine learning on Dask, from the command line.",
    )
    parser.add_argument("--version", action="version", version=f"daskml_dist {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    # Modules of commands import slow libraries only when they run.
    modules = {name: import_module(f"{__name__}.{name}") for name in COMMANDS}
    for name, module in modules.items():
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(name, help=text.split("\n")[0], description=text)
        module.add_arguments(command)
    arguments = parser.parse_args(argv)
    return _run(modules[arguments.command], arguments)


def _run(module: Any, arguments: Any) -> int:
    """Run a command's module; print expected errors without a traceback, as one line."""
    try:
        return int(module.run(arguments))
    # Errors of the package name their remedy. Any other exception is a defect: its traceback is
    # shown.
    except (DaskMLDistError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    """Parser without abbreviations, whose errors suggest the nearest option or choice."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options, allow_abbrev=False)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the parsed arguments; the parser of their command reports unknown ones."""
        parsed, unknown = self.parse_known_args(args, namespace)
        # argparse would report an unknown argument by the main parser, which has other options.
        if unknown:
            command = self._commands().get(getattr(parsed, "command", ""), self)
            command.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print the error with a suggestion, and exit with status 2."""
        # argparse passes only its text, which is searched for the option or choice.
        hint = ""
        if unknown := re.search(r"unrecognized arguments: (--[^\s=]+)", message):
            hint = (
                suggest_nearest(unknown[1], self._option_string_actions)
                or f" See {self.prog} --help."
            )
        elif choice := re.search(r"invalid choice: '([^']*)'", message):
            hint = suggest_nearest(
                choice[1], re.findall(r"[\w-]+", message.split("choose from")[-1])
            )
        super().error(message + hint)

    def _commands(self) -> dict[str, _Parser]:
        """Return the parsers of the commands by name; none for a command's own parser."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}
