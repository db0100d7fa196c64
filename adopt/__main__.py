"""`python -m adopt`: flags -> AdoptConfig -> run."""

from pathlib import Path
from typing import Annotated

import typer

from adopt.config import AdoptConfig, ConfigError, Engine

KvEvents = Annotated[
    str,
    typer.Option(
        help="ZMQ endpoint of its KV events: tcp://host:port, or tcp://*:port for an engine that connects to us."
    ),
]
FleetKeyFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the fleet's key, which signs what is published. Default: RYOKAN_FLEET_KEY, or unsigned."
    ),
]
Model = Annotated[
    str, typer.Option(help="What the engine serves: a folder in Hugging Face format, a hub name, or the default model.")
]


def main(
    engine: Annotated[Engine, typer.Option(help="What runs there.")],
    url: Annotated[str, typer.Option(help="The engine's OpenAI server: http://host:port.")],
    kv_events: KvEvents,
    redis_url: Annotated[str, typer.Option(help="Redis of the fleet to join.")],
    model: Model = "smollm2-135m-instruct",
    kv_replay: Annotated[
        str | None, typer.Option(help="ZMQ endpoint that replays KV events. Without it a gap costs all that is known.")
    ] = None,
    kv_topic: Annotated[str, typer.Option(help="Topic of the KV events.")] = "",
    served_model_name: Annotated[
        str | None, typer.Option(help="The model name that the fleet's clients send. Default: the model's own.")
    ] = None,
    fleet: Annotated[str, typer.Option(help="Name of the fleet within that Redis.")] = "default",
    fleet_key_file: FleetKeyFile = None,
    id: Annotated[str | None, typer.Option(help="Name of this replica, unique in the fleet. Default: random.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on for gateways.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 0,
    advertise: Annotated[
        str | None, typer.Option(help="URL that gateways connect to. Default: http://HOST:PORT.")
    ] = None,
    drain_s: Annotated[float, typer.Option(help="Seconds that requests get to finish when it is stopped.")] = 30.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Make a running vLLM or SGLang server a replica of a fleet: gateways learn from its KV events what it holds."""
    import asyncio
    import logging

    from replica.model.source import resolve_model
    from replica.protocol.listening import ListenError
    from replica.protocol.signing import FleetKeyError, Signer
    from replica.protocol.text import ModelFolderError
    from replica.publisher import IdTaken, RedisUnreachable

    try:
        from adopt.run import WrongModel, run
    except ModuleNotFoundError as error:
        if error.name not in ("zmq", "msgspec"):
            raise
        typer.echo("ryokan adopt: it reads KV events with pyzmq and msgspec: pip install 'ryokan[adopt]'", err=True)
        raise typer.Exit(1) from error

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        folder, name = resolve_model(model)
        config = AdoptConfig(
            engine=engine,
            engine_url=url.rstrip("/"),
            kv_events=kv_events,
            kv_replay=kv_replay,
            kv_topic=kv_topic,
            folder=folder,
            model_name=served_model_name or name,
            redis_url=redis_url,
            fleet=fleet,
            **({"id": id} if id else {}),
            host=host,
            port=port,
            advertised_url=advertise,
            drain_s=drain_s,
            signer=Signer.load(fleet_key_file),
        )
        code = asyncio.run(run(config))
    except (ConfigError, FleetKeyError, ListenError, ModelFolderError, RedisUnreachable, IdTaken, WrongModel) as error:
        typer.echo(f"ryokan adopt: {error}", err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)
