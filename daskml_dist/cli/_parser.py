"""Parser of arguments that says what was meant by one that is nearly right."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from daskml_dist.errors.nearest import nearest

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors name the nearest option or choice; options are given whole."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options, allow_abbrev=False)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; one that nobody knows is an error of the command that it was for."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = self._commands().get(getattr(found, "command", ""), self)
            command.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and what may have been meant, and exit with 2."""
        said = message
        if unknown := re.search(r"unrecognized arguments: (--[^\s=]+)", message):
            said += nearest(unknown[1], self._option_string_actions) or f" See {self.prog} --help."
        elif choice := re.search(r"invalid choice: '([^']*)'", message):
            said += nearest(choice[1], re.findall(r"[\w-]+", message.split("choose from")[-1]))
        super().error(said)

    def _commands(self) -> dict[str, Parser]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}
