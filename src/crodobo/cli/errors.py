"""How errors reach people: one sentence, with the options that it is about."""

from typing import Any

from crodobo.config import nearest
from crodobo.errors import CrodoboError


def sentence(error: CrodoboError, options: dict[str, str]) -> str:
    """An error with the options of the settings that it names, where the command has them.

    >>> error = CrodoboError("The source is missing.", "Name a folder.", settings=("source", "tau"))
    >>> sentence(error, {"source": "--source"})
    'The source is missing. Name a folder. (see --source)'
    """
    named = [options[name] for name in error.settings if name in options]
    return f"{error} (see {', '.join(named)})" if named else str(error)


def usage_sentence(error: Any) -> str:
    """An error of the command line itself; an option that does not exist gets the nearest one."""
    if option := getattr(error, "option_name", ""):
        near = nearest(option, options_of(error.ctx.command, every=True))
        hint = f"Did you mean {near}?" if near else f"`{error.ctx.command_path} --help` lists the options."
        return f"There is no option {option}. {hint}"
    return " ".join(error.format_message().split())


def options_of(command: Any, every: bool = False) -> dict[str, str]:
    """The options of a command by the name of their setting, or each by itself."""
    options = [
        each for each in command.params if each.param_type_name == "option" and not getattr(each, "hidden", False)
    ]
    if every:
        return {name: name for each in options for name in (*each.opts, *each.secondary_opts)}
    return {each.name: each.opts[0] for each in options}


def command_of(command: Any, words: list[str]) -> Any:
    """The command that these words call: `audit disk`, for example."""
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return command.commands[command.default] if hasattr(command, "default") else command
