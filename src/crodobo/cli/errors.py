"""How errors reach people: one sentence, with the options that it is about."""

from typing import Any

from crodobo.config import nearest
from crodobo.errors import CrodoboError


def sentence(error: CrodoboError, options: dict[str, list[str]], *words: str) -> str:
    """An error with the options of the settings that it names, if the command has them, spelled as in `words`.

    >>> error = CrodoboError("The source is missing.", "Name a folder.", settings=("source", "tau"))
    >>> sentence(error, {"source": ["--source"]})
    'The source is missing. Name a folder. (see --source)'
    """
    typed = {word.partition("=")[0] for word in words}
    spellings = [options[name] for name in error.settings if name in options]
    named = [next((each for each in names if each in typed), names[0]) for names in spellings]
    return f"{error} (see {', '.join(named)})" if named else str(error)


def usage_sentence(error: Any) -> str:
    """An error of the command line itself; an option that does not exist gets the nearest one."""
    if type(error).__name__ == "NoSuchOption":
        near = nearest(error.option_name, spellings_of(error.ctx.command))
        hint = f"Did you mean {near}?" if near else f"`{error.ctx.command_path} --help` lists the options."
        return f"There is no option {error.option_name}. {hint}"
    return " ".join(error.format_message().split())


def options_of(command: Any) -> dict[str, list[str]]:
    """The spellings of the options that the help of a command shows, by the name of their setting."""
    shown = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    return {each.name: [*each.opts, *each.secondary_opts] for each in shown}


def spellings_of(command: Any) -> list[str]:
    """All spellings of the options that the help of a command shows."""
    return [name for names in options_of(command).values() for name in names]


def command_of(command: Any, words: list[str]) -> Any:
    """The command that these words call: `audit disk`, for example."""
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return command.commands[command.default] if hasattr(command, "default") else command
