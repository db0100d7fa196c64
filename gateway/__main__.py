"""`python -m gateway`: flags to settings, and off."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.addresses import DEFAULT_NETWORKS
from gateway.admin_key import load_admin_key
from gateway.config import MIB, ConfigError, GatewayConfig, Timeouts
from gateway.index.prefix_index import MAX_BLOCKS
from replica.protocol.signing import FleetKeyError, Signer

DEFAULTS = Timeouts()
LOG_LEVELS = ("debug", "info", "warning", "error")
Model = Annotated[
    Path,
    typer.Option(help="Model folder in Hugging Face format. Only its config, tokenizer and chat template are read."),
]
RedisUrl = Annotated[
    str,
    typer.Option(
        envvar="RYOKAN_REDIS_URL",
        help="Where replicas announce themselves: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://.",
    ),
]
FleetKeyFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the fleet's key: what isn't signed with it is refused. Default: RYOKAN_FLEET_KEY, or none."
    ),
]
ReplicaNetworks = Annotated[
    str | None,
    typer.Option(
        help="Where replicas may live, separated by commas: 10.0.0.0/8, a name, .example.org for all names below it, "
        "or . for names without a dot. Default: loopback, private networks and names known only there."
    ),
]
ShadowPolicy = Annotated[
    str | None, typer.Option(help="A policy that decides along and moves no traffic; see GET /route/shadow.")
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        help="TOML (or .json) with `policy` and perhaps `shadow`, in place of the flags; read again as it changes."
    ),
]
AdminKeyFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the key that POST /admin/policy needs, as a Bearer token. Default: RYOKAN_ADMIN_KEY, or none: "
        "then it obeys this machine only."
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(help="File for a trace of all requests, without any text, that `ryokan replay` plays again."),
]
RecordMaxMib = Annotated[int, typer.Option(min=1, help="Size at which that file becomes FILE.1 and begins anew.")]


def main(
    model: Model,
    redis_url: RedisUrl,
    port: Annotated[int, typer.Option(help="Port to serve on; 0 picks a free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to serve on. There are no keys yet: anything but loopback is open to all.")
    ] = "127.0.0.1",
    policy: Annotated[
        str,
        typer.Option(
            help="How replicas are chosen: ttft (predicted time to first token), or another; a wrong one lists all."
        ),
    ] = "ttft",
    shadow_policy: ShadowPolicy = None,
    policy_file: PolicyFile = None,
    admin_key_file: AdminKeyFile = None,
    fleet: Annotated[str, typer.Option(help="Name that replicas and gateways share to find each other.")] = "default",
    fleet_key_file: FleetKeyFile = None,
    replica_networks: ReplicaNetworks = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="The model name that clients send. Default: the folder's name.")
    ] = None,
    queue_timeout: Annotated[
        float, typer.Option(help="Seconds that a request waits for a replica to appear, before 503.")
    ] = DEFAULTS.queue_s,
    first_byte_timeout: Annotated[
        float, typer.Option(help="Seconds until the first token, queue and prefill included, before another replica.")
    ] = DEFAULTS.first_byte_s,
    idle_timeout: Annotated[
        float, typer.Option(help="Longest silence in seconds within an answer that has begun.")
    ] = DEFAULTS.idle_s,
    connect_timeout: Annotated[float, typer.Option(help="Seconds to connect to a replica.")] = DEFAULTS.connect_s,
    grace: Annotated[
        float, typer.Option(help="Seconds that streams in flight may go on after SIGTERM.")
    ] = DEFAULTS.grace_s,
    body_limit_mib: Annotated[int, typer.Option(help="Largest request body in MiB, after decompression.")] = 8,
    retry_budget: Annotated[
        float, typer.Option(help="Requests being retried at any moment, as a share of those in flight; one always may.")
    ] = 0.2,
    tokenise_threads: Annotated[int, typer.Option(help="Threads that render and tokenise prompts.")] = 2,
    index_max_blocks: Annotated[
        int, typer.Option(help="Distinct KV blocks that the index takes, over all replicas; ten million need 0.3 GiB.")
    ] = MAX_BLOCKS,
    record: Record = None,
    record_max_mib: RecordMaxMib = 256,
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LOG_LEVELS)}.")] = "info",
) -> None:
    """Serve the OpenAI API, each prompt from the replica that answers it soonest."""
    try:
        config = GatewayConfig(
            model=model,
            redis_url=redis_url,
            model_name=served_model_name,
            host=host,
            port=port,
            fleet=fleet,
            signer=Signer.load(fleet_key_file),
            replica_networks=DEFAULT_NETWORKS
            if replica_networks is None
            else tuple(part.strip() for part in replica_networks.split(",")),
            policy=policy,
            shadow_policy=shadow_policy,
            policy_file=policy_file,
            admin_key=load_admin_key(admin_key_file),
            timeouts=Timeouts(connect_timeout, first_byte_timeout, idle_timeout, queue_timeout, grace),
            body_limit=body_limit_mib * MIB,
            retry_budget=retry_budget,
            tokenise_threads=tokenise_threads,
            index_max_blocks=index_max_blocks,
            record=record,
            record_max_bytes=record_max_mib * MIB,
        )
        if log_level not in LOG_LEVELS:
            raise ConfigError(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {log_level!r}")
    except (ConfigError, FleetKeyError) as error:
        sys.exit(_fail(str(error), 2))
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    sys.exit(_run(config))


def _run(config: GatewayConfig) -> int:
    from gateway.errors import StartError
    from gateway.policies import PolicyFileError, chosen
    from gateway.routing.registry import UnknownPolicy, make_policy
    from gateway.run import run
    from replica.protocol.listening import ListenError

    try:
        names = chosen(config)
        for name in filter(None, (names.policy, names.shadow)):
            make_policy(name)
    except (UnknownPolicy, PolicyFileError) as error:
        return _fail(str(error), 2)
    if not config.is_loopback:
        logging.getLogger("gateway").warning(
            "serving on %s without keys: anyone who reaches it may use it", config.host
        )
    try:
        run(config)
    except (ListenError, StartError) as error:
        return _fail(str(error), 1)
    return 0


def _fail(message: str, code: int) -> int:
    print(f"gateway: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    typer.run(main)
