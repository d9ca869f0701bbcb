"""Command-line flags made from the typed options; only what the user gave ends up among the values.

It knows spelling and parsing, not meaning. Selection flags can be read alone, before plugins may add choices to
the others.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from graftlm.config.engine_config import EngineConfig
from graftlm.config.environment import VARIABLES, get
from graftlm.config.errors import ConfigError, InvalidOption
from graftlm.config.options import (
    Option,
    apply_values,
    engine_options,
    options_by_name,
    read_environment,
    read_options,
    server_options,
)
from graftlm.config.server_config import ServerConfig
from graftlm.config.vllm_flags import advice_for
from graftlm.config.yaml_file import read_yaml_file
from graftlm.plugins.spelling import nearest_names

_TITLES = {name: section.__doc__ or name for name, section in EngineConfig.section_types().items()} | {
    "server": ServerConfig.__doc__ or "server"
}


#: What a field of text holds, in the help; TEXT for all others.
_METAVARS = {
    "model": "MODEL", "served_model_name": "NAME", "tokenizer": "PATH", "load_format": "NAME",
    "distributed_executor_backend": "NAME", "worker_cls": "NAME", "scheduler_cls": "NAME",
    "attention_backend": "NAME", "backend": "NAME",
    "custom_ops": "SWITCHES", "op_providers": "NAMES", "plugins": "NAMES", "enable_plugin": "NAMES",
    "disable_plugin": "NAMES", "platform": "NAME", "plugins_locked": "FILE", "plugin_config": "NAME.KEY=VALUE",
    "log_level": "LEVEL", "host": "ADDRESS", "api_key": "KEY", "endpoint_overrides": "NAME",
    "endpoint_no_auth": "NAME", "root_path": "PATH", "quantization": "NAME",
}  # fmt: skip


class UsageError(ConfigError):
    """A command line that cannot be understood; the command ends with code 2."""


class UnknownFlag(UsageError):
    """A flag that the command does not have."""

    def __init__(self, flag: str, *, cure: str) -> None:
        super().__init__(f"unknown flag {flag}; {cure}")
        self.flag = flag


class ArgumentParser(argparse.ArgumentParser):
    """An argparse parser that knows no abbreviations and raises UsageError instead of ending the process."""

    #: What to write where a word is missing that belongs to no flag.
    words_wanted = ""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", _HelpFormatter)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        cure = f"; {self.words_wanted}" if self.words_wanted and "arguments are required" in message else ""
        raise UsageError(message.removeprefix("argument ") + cure)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does it, in the words of every other wrong value."""
        if action.choices is not None and value not in action.choices:
            flag = action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)
            choices = " or ".join(map(str, action.choices))
            raise UsageError(str(InvalidOption(flag, value, problem="no such choice", cure=f"use {choices}")))

    def format_help(self) -> str:
        """Add the environment variables to what argparse says."""
        width = max(map(len, VARIABLES))
        lines = [f"  {v.name:<{width}}  {v.help}" for v in VARIABLES.values()]
        return "\n".join([super().format_help(), "environment:", *lines, ""])

    def flags(self) -> list[str]:
        return sorted(self._option_string_actions)

    def parse_strictly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse everything; an unknown flag is an error with the nearest ones."""
        namespace, extra = self.parse_known_args(join_switches(argv))
        if not extra:
            return namespace
        flag = next((word.split("=", 1)[0] for word in extra if word.startswith("-") and word != "-"), None)
        if flag is None:
            raise UsageError(
                f"unexpected argument {extra[0]!r}; a flag with several values is repeated: --x a --x b"
            )
        raise self._unknown(flag)

    def refuse_unknown_flags(self, argv: Sequence[str]) -> None:
        """Raise UsageError for a long flag that this parser has not; what else is wrong is found by parsing."""
        words = list(argv)[: list(argv).index("--")] if "--" in argv else argv
        known = self._option_string_actions
        for word in words:  # a word with a blank is a value, as argparse sees it
            if word.startswith("--") and " " not in word and (flag := word.split("=", 1)[0]) not in known:
                raise self._unknown(flag)

    def _unknown(self, flag: str) -> UnknownFlag:
        near = nearest_names(flag, self.flags())
        cure = f"did you mean {' or '.join(near)}?" if near else f"see `{self.prog} --help`"
        return UnknownFlag(flag, cure=advice_for(flag, self._option_string_actions) or cure)


class OpenChoices(list[str]):
    """Names to show that plugins may add to; every other is accepted here and judged by `engine/configure.py`."""

    def __contains__(self, name: object) -> bool:
        return True


class _HelpFormatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)


class _SetOption(argparse.Action):
    """Store a converted value under the option's path; lists grow with each use."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, option: Option, **options: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **options)
        self.option = option

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.nargs == 0:
            value: Any = not (option_string or "").startswith("--no-") or self.option.flag.startswith("--no-")
        else:
            try:
                value = self.option.parse(values, any_choice=self.choices is not None)
            except InvalidOption as error:
                raise UsageError(str(error)) from None
        if self.option.kind is list:
            value = [*getattr(namespace, self.dest, []), *value]
        setattr(namespace, self.dest, value)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What a user asked for, by flags, by file and by environment: `{path: value}`, the last word already taken."""

    values: Mapping[str, Any]
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Flag → the variable or file that gave its value, where the command line did not."""

    @contextlib.contextmanager
    def naming_origins(self) -> Iterator[None]:
        """Let an error about a flag that nobody typed say where its value comes from."""
        try:
            yield
        except Exception as error:
            flag = re.split(r"[= :]", str(error), maxsplit=1)[0]
            if (where := self.origins.get(flag)) is not None and f" in {where}:" not in str(error):
                error.add_note(f"{flag} is set by {where}")
            raise

    def engine_config(self) -> EngineConfig:
        """Return a configuration in which the user's values are set and recorded as theirs; not resolved."""
        config = EngineConfig()
        apply_values(config, {p: v for p, v in self.values.items() if not p.startswith("server.")})
        return config

    def server_config(self) -> ServerConfig:
        given = {p.removeprefix("server."): v for p, v in self.values.items() if p.startswith("server.")}
        return ServerConfig(**given)


def add_options(
    parser: argparse.ArgumentParser,
    options: Iterable[Option],
    *,
    choices: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Add a flag for each option; `choices` gives names, by path, of options whose names plugins may add to."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options:
        group = groups.get(option.section) or groups.setdefault(
            option.section, parser.add_argument_group(option.section, _TITLES[option.section].rstrip("."))
        )
        names: list[str] | None = list(option.choices) if option.choices else None
        if option.path in (choices or {}):
            names = OpenChoices((choices or {})[option.path])
        keywords: dict[str, Any] = {"help": _help(option), "dest": option.path, "option": option}
        if option.kind is bool:
            spellings = [option.flag, *option.aliases]
            if not option.field.startswith("no_"):
                spellings += [f"--no-{flag.removeprefix('--')}" for flag in spellings]
            group.add_argument(*spellings, action=_SetOption, nargs=0, **keywords)
        else:
            metavar = None if names else _metavar(option)
            group.add_argument(
                option.flag, *option.aliases, action=_SetOption, choices=names, metavar=metavar,
                type=option.translated, **keywords,
            )  # fmt: skip


def selection_options() -> tuple[Option, ...]:
    """Options that must be known before any plugin runs."""
    return tuple(o for o in engine_options() if o.section in ("plugins", "observability"))


def add_config_file_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags, by name; flags given here win.")


def read_selection(
    argv: Sequence[str], *, options: Sequence[Option] | None = None, more: Sequence[Option] = ()
) -> Arguments:
    """Read only the selection flags of `argv` (with file and environment), whatever else stands there.

    `options` are all that the file may set (default: the engine's and the server's); `more` are read too.
    """
    wanted = (*selection_options(), *more)
    parser = ArgumentParser(add_help=False)
    add_options(parser, wanted)
    add_config_file_flag(parser)
    namespace, _ = parser.parse_known_args(join_switches(argv))
    allowed = {option.path for option in wanted}
    everything = _layers(namespace, options if options is not None else (*engine_options(), *server_options()))
    return Arguments({p: v for p, v in everything.values.items() if p in allowed}, everything.origins)


def read_arguments(
    parser: ArgumentParser, argv: Sequence[str], *, options: Sequence[Option]
) -> tuple[Arguments, argparse.Namespace]:
    """Parse all of `argv`, and lay flags over file over environment. Also returns the other words parsed."""
    namespace = parser.parse_strictly(argv)
    layers = _layers(namespace, options)
    values = dict(layers.values)
    positional = getattr(namespace, "model", None)
    if positional is not None:
        flag = getattr(namespace, "model.model", positional)
        if flag != positional:
            raise UsageError(f"the model is given twice: {positional!r} and --model {flag!r}")
        values["model.model"] = positional
    return Arguments(values, layers.origins), namespace


def options_from_keywords(keywords: Mapping[str, Any]) -> EngineConfig:
    """Build the configuration of an offline engine from keyword arguments, spelled as the flags."""
    values = read_environment(get, engine_options()) | read_options(keywords, engine_options(), where="LLM()")
    return Arguments(values).engine_config()


def join_switches(argv: Sequence[str]) -> list[str]:
    """Write `--custom-ops -name` as `--custom-ops=-name`, which argparse would take for a flag."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--custom-ops" and word.startswith("-") and not word.startswith("--"):
            words[-1] = f"--custom-ops={word}"
        else:
            words.append(word)
    return words


def _layers(namespace: argparse.Namespace, options: Sequence[Option]) -> Arguments:
    """Lay flags over the file over the environment."""
    by_name = options_by_name(options)
    flags = {option.path: option.flag for option in by_name.values()}
    values = read_environment(get, options)
    variables = {by_name[v.option].path: v.name for v in VARIABLES.values() if v.option in by_name}
    origins = {flags[path]: variables[path] for path in values}
    file = getattr(namespace, "config", None)
    if file is not None:
        in_file = read_options(read_yaml_file(file), options, where=file)
        values |= in_file
        origins |= {flags[path]: file for path in in_file}
    typed = {path: value for path, value in vars(namespace).items() if path in flags}
    for path in typed:
        origins.pop(flags[path], None)
    return Arguments(values | typed, origins)


def _help(option: Option) -> str:
    text = option.help.replace("%", "%%")
    if option.kind is bool and option.default:
        return f"{text.rstrip('.')} (default: on)."
    if "default" in text or option.kind is bool or option.default in (None, "", [], {}):
        return text
    return f"{text.rstrip('.')} (default: {option.default})."


def _metavar(option: Option) -> str:
    words = {int: "N", float: "X", dict: "JSON"}
    if option.is_bytes:
        return "BYTES"
    return words.get(option.kind) or _METAVARS.get(option.field, "TEXT")
