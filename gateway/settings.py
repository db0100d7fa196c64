"""All settings of a gateway in one place: name, type, default, bounds and what they mean.

Each is a flag (`--queue-timeout`), a variable (`RYOKAN_QUEUE_TIMEOUT`) and a key of the settings file (TOML:
`queue_timeout = 10`; paths are seen from its folder). A flag goes before a variable, that before the file, and the file
before the default. What is unknown or out of bounds is refused by name. A new setting is a field here, and one in
config.py that it becomes.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gateway.access_log import OFF, STDOUT
from gateway.addresses import DEFAULT_NETWORKS
from gateway.admin_key import load_admin_key
from gateway.config import MAX_WORKERS, MIB, ConfigError, GatewayConfig, Timeouts
from gateway.index.prefix_index import MAX_BLOCKS
from gateway.served import ServedModel
from gateway.toml_place import toml_place
from gateway.upstream_keys import UpstreamKeysError, load_upstream_keys
from replica.protocol.signing import Signer

DEFAULTS = Timeouts()
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Port = Annotated[int, Field(ge=0, le=65535)]


def _listed(value: Any) -> Any:
    """A flag may be repeated, and each may hold several; so may a variable."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return value
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


_List = Annotated[list[str], BeforeValidator(_listed)]
_File = Path | None


def _about(help: str, default: Any = None) -> Any:
    return Field(default=default, description=help)


class PromptFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path


class ModelSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    model: str
    fleet: str | None = None
    aliases: list[str] = Field(default_factory=list)
    upstream: list[str] = Field(default_factory=list)


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    model: str | None = _about("Model folder in Hugging Face format. Only its config, tokenizer and template are read.")
    redis_url: str | None = _about(
        "Where replicas announce themselves: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://."
    )
    upstream: _List = _about(
        "URL of an OpenAI server that isn't a replica of ours; may be repeated, and needs no Redis.", []
    )
    upstream_keys_file: _File = _about(
        'TOML with the API keys that upstreams ask for: "URL" = "KEY". Of those that it doesn\'t name: '
        "RYOKAN_UPSTREAM_KEY, or none."
    )
    tokenizer: _File = _about(
        "Folder with the tokenizer of the upstreams' model, and its chat template: in place of `model`."
    )
    probe_interval: _Seconds = _about("Seconds between two probes of an upstream.", 1.0)
    port: _Port = _about("Port to serve on; 0 picks a free one.", 8000)
    host: str = _about("Address to serve on. Beyond loopback, give it keys.", "127.0.0.1")
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = _about(
        "Processes that serve on the port; limits of keys are those of all together.", 1
    )
    reuse_port: bool = _about("Let another gateway serve on the same port, to take this one's place.", False)
    policy: str = _about(
        "How replicas are chosen: ttft (predicted time to first token), or another; a wrong one lists all.", "ttft"
    )
    shadow_policy: str | None = _about("A policy that decides along and moves no traffic; see GET /route/shadow.")
    policy_file: _File = _about(
        "TOML (or .json) with `policy` and perhaps `shadow`, in place of the settings; read again as it changes."
    )
    admin_key_file: _File = _about(
        "File with the key that operators show, as a Bearer token. Default: RYOKAN_ADMIN_KEY, or none: then this "
        "machine only may change how the gateway works."
    )
    admin_port: _Port | None = _about("Port for what operators ask (metrics, replicas, routes), then not on the other.")
    admin_host: str = _about("Address of that port.", "127.0.0.1")
    keys_file: _File = _about("TOML with API keys, as `ryokan keys new` makes them. Default: none, everybody may.")
    isolate_tenants: bool = _about(
        "With keys: tenants find only their own cached prefixes, and public prompts. False also for replicas whose "
        "engine knows no salts.",
        True,
    )
    cors_origins: _List = _about("Origins of web pages that may ask, separated by commas, or *. Default: none.", [])
    fleet: str = _about("Name that replicas and gateways share to find each other.", "default")
    fleet_key_file: _File = _about(
        "File with the fleet's key: what isn't signed with it is refused. Default: RYOKAN_FLEET_KEY, or none."
    )
    replica_networks: _List = _about(
        "Where replicas may live, separated by commas: 10.0.0.0/8, a name, .example.org for all names below it, or . "
        "for names without a dot. Default: loopback, private networks and names known only there.",
        list(DEFAULT_NETWORKS),
    )
    served_model_name: str | None = _about("The model name that clients send. Default: the folder's name.")
    queue_timeout: _Seconds = _about(
        "Seconds that a request waits for a replica to appear, before 503.", DEFAULTS.queue_s
    )
    first_byte_timeout: _Seconds = _about(
        "Seconds until the first token, queue and prefill included, before another replica.", DEFAULTS.first_byte_s
    )
    idle_timeout: _Seconds = _about("Longest silence in seconds within an answer that has begun.", DEFAULTS.idle_s)
    connect_timeout: _Seconds = _about("Seconds to connect to a replica.", DEFAULTS.connect_s)
    grace: _Seconds = _about("Seconds that streams in flight may go on after SIGTERM.", DEFAULTS.grace_s)
    body_limit_mib: Annotated[int, Field(ge=1)] = _about("Largest request body in MiB, after decompression.", 8)
    retry_budget: Annotated[float, Field(ge=0, le=1)] = _about(
        "Requests being retried at any moment, as a share of those in flight; one always may.", 0.2
    )
    tokenise_threads: Annotated[int, Field(ge=1)] = _about("Threads that render and tokenise prompts.", 2)
    index_max_blocks: Annotated[int, Field(ge=1)] = _about(
        "Distinct KV blocks that the index takes, over all replicas; ten million need 0.3 GiB.", MAX_BLOCKS
    )
    max_queued_tokens: Annotated[int, Field(ge=1)] | None = _about(
        "Uncached prompt tokens that may wait. Default: what the fleet prefills in the time until the first byte."
    )
    record: _File = _about("File for a trace of all requests, without any text, that `ryokan replay` plays again.")
    record_max_mib: Annotated[int, Field(ge=1)] = _about("Size at which that file becomes FILE.1 and begins anew.", 256)
    access_log: str = _about(
        "File for a line of JSON for each request, without any text of it; SIGHUP opens it anew. -: standard output.",
        "off",
    )
    otlp_endpoint: str | None = _about(
        "OpenTelemetry collector for spans, as http://host:4318 (OTLP over HTTP). Needs the extra `otel`."
    )
    log_level: Literal["debug", "info", "warning", "error"] = _about("debug, info, warning or error.", "info")
    public_prompts: dict[str, str | PromptFile] = _about(
        "In the file only: system prompts by name that all tenants share, as text or { file = PATH }.", {}
    )
    models: dict[str, ModelSection] = _about(
        "In the file only: several models by the name that clients send, each with `model`, its own `fleet` (default: "
        "its name), `aliases` and `upstream`s; in place of the settings of one.",
        {},
    )


FILE_ONLY = ("public_prompts", "models")
OF_ONE = ("model", "served_model_name", "tokenizer", "upstream", "fleet")
"""What `models` stands in place of."""
_STANDARD_VARIABLES = {"otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT"}
"""What others call it, too."""
ModelOf = Callable[[str | None], tuple[Path, str | None]]
"""Folder and name of what `model` says."""


def the_folder(model: str | None) -> tuple[Path, str | None]:
    """Raises ConfigError."""
    if model is None:
        raise ConfigError(_missing("model"))
    return Path(model), None


def load(file: Path | None, flags: Mapping[str, Any], model_of: ModelOf = the_folder) -> GatewayConfig:
    """`flags`: those that were given, by the name of the setting; variables count as flags. Raises ConfigError or
    FleetKeyError, whose messages name the setting and the file, and hold no secret."""
    given = {} if file is None else _read(file)
    flags = {name: value for name, value in flags.items() if value is not None and value != []}
    try:
        settings = Settings.model_validate(given | flags)
    except ValidationError as error:
        raise ConfigError(_explained(error, file, flags)) from None
    name: str | None
    models = tuple(_served(key, section, model_of) for key, section in settings.models.items())
    if models:
        for other in OF_ONE:
            if other in settings.model_fields_set:
                raise ConfigError(f"{other}: say it below [models.NAME], where there are several ([models.*])")
        folder, name = models[0].folder, models[0].name
    else:
        folder, name = (settings.tokenizer, None) if settings.tokenizer is not None else model_of(settings.model)
    try:
        return _config(settings, folder, name, models, file)
    except ConfigError as error:
        about = str(error).split(maxsplit=1)[0].rstrip(":")
        where = f"settings file {file}: " if about in given and about not in flags else ""
        raise ConfigError(f"{where}{error}") from error


def _served(name: str, section: ModelSection, model_of: ModelOf) -> ServedModel:
    folder, _ = model_of(section.model)
    return ServedModel(folder, name, section.fleet or name, tuple(section.aliases), tuple(section.upstream))


def _config(
    settings: Settings, folder: Path, name: str | None, models: tuple[ServedModel, ...], file: Path | None
) -> GatewayConfig:
    base = file.parent if file is not None else Path()
    prompt_files = {
        key: base / prompt.file for key, prompt in settings.public_prompts.items() if isinstance(prompt, PromptFile)
    }
    texts = {key: prompt for key, prompt in settings.public_prompts.items() if isinstance(prompt, str)}
    read_from = (file, settings.admin_key_file, settings.upstream_keys_file, *prompt_files.values())
    upstreams = tuple(settings.upstream)
    try:
        asked = (*upstreams, *(url for served in models for url in served.upstreams))
        upstream_keys = load_upstream_keys(settings.upstream_keys_file, asked)
    except UpstreamKeysError as error:
        raise ConfigError(str(error)) from error
    return GatewayConfig(
        model=folder,
        redis_url=settings.redis_url or "",
        upstreams=upstreams,
        upstream_keys=upstream_keys,
        models=models,
        probe_interval_s=settings.probe_interval,
        model_name=settings.served_model_name or name,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        reuse_port=settings.reuse_port,
        fleet=settings.fleet,
        signer=Signer.load(settings.fleet_key_file),
        replica_networks=tuple(settings.replica_networks),
        policy=settings.policy,
        shadow_policy=settings.shadow_policy,
        policy_file=settings.policy_file,
        admin_key=load_admin_key(settings.admin_key_file),
        admin_port=settings.admin_port,
        admin_host=settings.admin_host,
        keys_file=settings.keys_file,
        isolate_tenants=settings.isolate_tenants,
        public_prompts=texts | {key: _text(key, path) for key, path in prompt_files.items()},
        cors_origins=tuple(settings.cors_origins),
        timeouts=Timeouts(
            settings.connect_timeout,
            settings.first_byte_timeout,
            settings.idle_timeout,
            settings.queue_timeout,
            settings.grace,
        ),
        body_limit=settings.body_limit_mib * MIB,
        retry_budget=settings.retry_budget,
        tokenise_threads=settings.tokenise_threads,
        index_max_blocks=settings.index_max_blocks,
        max_queued_tokens=settings.max_queued_tokens,
        record=settings.record,
        record_max_bytes=settings.record_max_mib * MIB,
        access_log=settings.access_log,
        otlp_endpoint=settings.otlp_endpoint,
        log_level=settings.log_level,
        files=tuple(path for path in read_from if path is not None),
    )


def _text(name: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigError(f"public_prompts.{name}: {path}: {reason}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        given = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"settings file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {file}: {toml_place(error)}") from None
    # Paths are seen from where the file lies.
    paths = {
        name: str(file.parent / value)
        for name, value in given.items()
        if isinstance(value, str) and _is_path(name, value)
    }
    return given | paths


def _is_path(name: str, value: str) -> bool:
    if name == "access_log":
        return value not in ("", OFF, STDOUT)
    return name in Settings.model_fields and Settings.model_fields[name].annotation == _File


def _explained(error: ValidationError, file: Path | None, flags: Mapping[str, Any]) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    name = str(first["loc"][0])
    field = ".".join(str(part) for part in first["loc"] if part not in ("str", "PromptFile"))
    if first["type"] == "missing":
        return _missing(name)
    where = f"{flag_of(name)} or {variable_of(name)}" if name in flags else f"settings file {file}: {field}"
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such setting"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


def _missing(name: str) -> str:
    return f"{name} is missing: give {flag_of(name)}, {variable_of(name)} or {name} in the settings file"


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def variable_of(name: str) -> str:
    if name in _STANDARD_VARIABLES:
        return _STANDARD_VARIABLES[name]
    # Kubernetes sets NAME_PORT for each service to something else: there may well be services ryokan and ryokan-admin.
    return f"RYOKAN_{name.removesuffix('port').upper()}HTTP_PORT" if name.endswith("port") else f"RYOKAN_{name.upper()}"
