"""`python -m gateway`: flags, variables and a file to settings, and off."""

import inspect
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from gateway.config import ConfigError, GatewayConfig
from gateway.settings import FILE_ONLY, ModelOf, Settings, flag_of, load, the_folder, variable_of
from replica.protocol.signing import FleetKeyError

CONFIG = Annotated[
    Path | None,
    typer.Option(envvar="RYOKAN_CONFIG", help="TOML with any of these settings, named with _ for -; flags go before."),
]
CHECK = Annotated[bool, typer.Option("--check", help="Say whether the settings can be used, and serve nothing.")]


def main(**flags: Any) -> None:
    """Serve the OpenAI API, each prompt from the replica that answers it soonest."""
    start(flags)


def start(flags: dict[str, Any], model_of: ModelOf = the_folder) -> None:
    """`flags` by the names of `options`; None: not given."""
    check, file = flags.pop("check", False), flags.pop("config", None)
    read = partial(load, file, flags, model_of)
    try:
        config = read()
    except (ConfigError, FleetKeyError) as error:
        sys.exit(_fail(str(error), 2))
    logging.basicConfig(
        level=config.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    sys.exit(_check(config) if check else _run(config, read))


def options() -> dict[str, inspect.Parameter]:
    """A flag for each setting. None is given none, so that a variable, the file and the default have their turn."""
    made = {"config": _parameter("config", CONFIG, None), "check": _parameter("check", CHECK, False)}
    for name, field in Settings.model_fields.items():
        if name in FILE_ONLY:
            continue
        option = typer.Option(
            *([f"{flag_of(name)}/--no-{flag_of(name)[2:]}"] if _kind(field) is bool else [flag_of(name)]),
            envvar=variable_of(name),
            help=field.description,
            show_default=_shown(field),
        )
        made[name] = _parameter(name, Annotated[_kind(field) | None, option], None)
    return made


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _kind(field: FieldInfo) -> Any:
    """Of the flag; what may be None is given as what else it may be."""
    kind = field.annotation
    if (get_origin(kind) is not None and type(None) in get_args(kind)) or type(None) in get_args(kind):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is list:
        return list[str]
    return str if get_origin(kind) is Literal else kind


def _shown(field: FieldInfo) -> str | bool:
    if field.is_required() or field.default in (None, [], {}) or isinstance(field.default, list):
        return False
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def with_options(command: Callable[..., None], parameters: dict[str, inspect.Parameter]) -> Callable[..., None]:
    command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return command


def _check(config: GatewayConfig) -> int:
    from gateway.check import CheckError, check

    try:
        check(config)
    except CheckError as error:
        return _fail(str(error), 2)
    print("ok")
    return 0


def _run(config: GatewayConfig, read: Callable[[], GatewayConfig]) -> int:
    from gateway.check import CheckError, check_choices
    from gateway.errors import StartError
    from gateway.run import run
    from replica.protocol.listening import ListenError

    try:
        check_choices(config)
    except CheckError as error:
        return _fail(str(error), 2)
    if not config.is_loopback and config.keys_file is None:
        logging.getLogger("gateway").warning(
            "serving on %s without keys: anyone who reaches it may use it", config.host
        )
    try:
        run(config, read)
    except (ListenError, StartError) as error:
        return _fail(str(error), 1)
    return 0


def _fail(message: str, code: int) -> int:
    print(f"gateway: {message}", file=sys.stderr)
    return code


with_options(main, options())

if __name__ == "__main__":
    typer.run(main)
