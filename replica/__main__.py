"""`python -m replica`: flags -> ReplicaConfig -> run."""

from pathlib import Path
from typing import Annotated

import typer

from replica.config import ConfigError, EngineConfig, Order, ReplicaConfig

StepTokens = Annotated[
    int | None,
    typer.Option(help="Tokens computed in one step at most: longer steps, later tokens. Default: 256 for each thread."),
]
Running = Annotated[int, typer.Option(help="Sequences computed side by side at most; fewer where KV memory is short.")]
PrefillOrder = Annotated[
    Order,
    typer.Option(
        help="Which prompt goes first: the one with the fewest tokens to compute, the one with the longest cached "
        "prefix, or the oldest. Priorities come before it, and nobody is overtaken for ever."
    ),
]
WaitingTokens = Annotated[
    int | None,
    typer.Option(
        help="Prompt tokens in the queue that aren't cached; more are refused with 503. "
        "Default: four times what the KV memory holds."
    ),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        envvar="RYOKAN_REDIS_URL",
        help="Redis of the fleet to join: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://. "
        "Left out, the replica serves alone.",
    ),
]
FleetKeyFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the fleet's key, which signs what is published. Default: RYOKAN_FLEET_KEY, or unsigned."
    ),
]


def main(
    model: Annotated[
        str, typer.Option(help="A folder in Hugging Face format, a hub name, or the default model's name.")
    ] = "smollm2-135m-instruct",
    served_model_name: Annotated[
        str | None, typer.Option(help="The model name that clients send. Default: the model's own.")
    ] = None,
    redis_url: RedisUrl = None,
    fleet: Annotated[str, typer.Option(help="Name of the fleet within that Redis.")] = "default",
    fleet_key_file: FleetKeyFile = None,
    id: Annotated[str | None, typer.Option(help="Name of this replica, unique in the fleet. Default: random.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 0,
    url: Annotated[str | None, typer.Option(help="URL that gateways connect to. Default: http://HOST:PORT.")] = None,
    weights: Annotated[str, typer.Option(help="int8 (quick) or fp32 (the reference).")] = "int8",
    kv: Annotated[str | None, typer.Option(help="KV cache in int8 or fp32. Default: as the weights.")] = None,
    threads: Annotated[
        int, typer.Option(help="Compute threads; over all replicas of a machine no more than it has cores.")
    ] = 1,
    kv_memory_gib: Annotated[
        float | None, typer.Option(help="Memory for KV blocks. Default: a fifth of what is available.")
    ] = None,
    max_step_tokens: StepTokens = None,
    max_running: Running = 64,
    order: PrefillOrder = Order.SHORTEST,
    max_waiting: Annotated[int, typer.Option(help="Requests in the queue; more are refused with 503.")] = 1024,
    max_waiting_tokens: WaitingTokens = None,
    prefix_cache: Annotated[bool, typer.Option(help="Reuse the KV of prefixes already computed.")] = True,
    drain_s: Annotated[float, typer.Option(help="Seconds that requests get to finish when it is stopped.")] = 30.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a model: prefill, decode, and a prefix cache whose digest the fleet's gateways read."""
    import asyncio
    import logging

    from replica.model.source import resolve_model
    from replica.protocol.signing import FleetKeyError, Signer
    from replica.protocol.text import ModelFolderError
    from replica.publisher import IdTaken, RedisUnreachable
    from replica.run import run

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        folder, name = resolve_model(model)
        config = ReplicaConfig(
            folder=folder,
            model_name=served_model_name or name,
            **({"id": id} if id else {}),
            host=host,
            port=port,
            advertised_url=url,
            redis_url=redis_url,
            fleet=fleet,
            signer=Signer.load(fleet_key_file),
            max_waiting=max_waiting,
            max_waiting_tokens=max_waiting_tokens,
            drain_s=drain_s,
            engine=EngineConfig(
                weights=weights,
                kv=kv,
                threads=threads,
                kv_memory_bytes=None if kv_memory_gib is None else int(kv_memory_gib * 2**30),
                max_step_tokens=max_step_tokens,
                max_running=max_running,
                order=order,
                prefix_cache=prefix_cache,
            ),
        )
        code = asyncio.run(run(config))
    except (ConfigError, FleetKeyError, ModelFolderError, RedisUnreachable, IdTaken) as error:
        typer.echo(f"ryokan replica: {error}", err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)
