"""`python -m replica`: flags -> ReplicaConfig -> run."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from replica.config import ConfigError, EngineConfig, Eviction, Order, ReplicaConfig, TimingConfig
from replica.device_config import DeviceConfig, device_config
from replica.timing.flags import Engine, EngineKind, KvTokens, ProfileName, TimeScale, no_device, timing_config

Model = Annotated[str, typer.Option(help="A folder in Hugging Face format, a hub name, or the default model's name.")]
ServedName = Annotated[str | None, typer.Option(help="The model name that clients send. Default: the model's own.")]
Threads = Annotated[
    int, typer.Option(help="Compute threads; over all replicas of a machine no more than it has cores.")
]
KvMemory = Annotated[
    float | None,
    typer.Option(
        help="Memory for KV blocks. Default: a fifth of what is available; on a GPU all that --gpu-memory-utilization "
        "leaves."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda or cuda:N. auto takes a GPU where torch has one and neither --weights nor --kv int8 asks "
        "for the CPU."
    ),
]
Weights = Annotated[str | None, typer.Option(help="On a CPU: int8 (quick) or fp32 (the reference). Default: int8.")]
Dtype = Annotated[str | None, typer.Option(help="On a GPU: bf16, fp16 or fp32. Default: bf16.")]
Kv = Annotated[
    str | None, typer.Option(help="KV cache: int8 or fp32 on a CPU, --dtype or fp8 on a GPU. Default: as the weights.")
]
GpuMemory = Annotated[
    float | None,
    typer.Option(help="On a GPU: the share of its memory that weights, a step and KV blocks may take. Default: 0.9."),
]
DeviceKernels = Annotated[
    str | None,
    typer.Option(help="On a GPU: triton, torch (slow, the reference), or auto: triton where it runs. Default: auto."),
]
CudaGraphs = Annotated[
    bool | None,
    typer.Option(
        "--cuda-graphs/--no-cuda-graphs", help="On a GPU: decode steps are recorded once and replayed. Default: yes."
    ),
]
TensorParallel = Annotated[
    int | None,
    typer.Option(
        help="On a GPU: so many cards compute the model together, from cuda:0 of those visible, and are one replica. "
        "Its heads, and those of K and V, must divide by it. Default: 1."
    ),
]
StepTokens = Annotated[
    int | None,
    typer.Option(
        help="Tokens computed in one step at most: longer steps, later tokens. Default: 256 for each thread, 8192 on a "
        "GPU."
    ),
]
Running = Annotated[
    int | None,
    typer.Option(
        help="Sequences computed side by side at most; fewer where KV memory is short. Default: 64, 256 on a GPU."
    ),
]
PrefillOrder = Annotated[
    Order,
    typer.Option(
        help="Which prompt goes first: the one with the fewest tokens to compute, the one with the longest cached "
        "prefix, or the oldest. Priorities come before it, and nobody is overtaken for ever."
    ),
]
EvictionOrder = Annotated[
    Eviction,
    typer.Option(
        help="Which cached pages go first: the least recently used, or those of a kind, by uses and age, that has been "
        "seen to come back least."
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

OtlpEndpoint = Annotated[
    str | None,
    typer.Option(
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
        help="OpenTelemetry collector for spans, as http://host:4318 (OTLP over HTTP). Needs the extra `otel`.",
    ),
]


def main(
    model: Model = "smollm2-135m-instruct",
    served_model_name: ServedName = None,
    redis_url: RedisUrl = None,
    fleet: Annotated[str, typer.Option(help="Name of the fleet within that Redis.")] = "default",
    fleet_key_file: FleetKeyFile = None,
    id: Annotated[str | None, typer.Option(help="Name of this replica, unique in the fleet. Default: random.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 0,
    url: Annotated[str | None, typer.Option(help="URL that gateways connect to. Default: http://HOST:PORT.")] = None,
    device: Device = "auto",
    weights: Weights = None,
    dtype: Dtype = None,
    kv: Kv = None,
    gpu_memory_utilization: GpuMemory = None,
    device_kernels: DeviceKernels = None,
    cuda_graphs: CudaGraphs = None,
    tensor_parallel: TensorParallel = None,
    threads: Threads = 1,
    kv_memory_gib: KvMemory = None,
    max_step_tokens: StepTokens = None,
    max_running: Running = None,
    order: PrefillOrder = Order.SHORTEST,
    max_waiting: Annotated[int, typer.Option(help="Requests in the queue; more are refused with 503.")] = 1024,
    max_waiting_tokens: WaitingTokens = None,
    prefix_cache: Annotated[bool, typer.Option(help="Reuse the KV of prefixes already computed.")] = True,
    eviction: EvictionOrder = Eviction.LRU,
    drain_s: Annotated[float, typer.Option(help="Seconds that requests get to finish when it is stopped.")] = 30.0,
    engine: Engine = EngineKind.TORCH,
    profile: ProfileName = None,
    kv_tokens: KvTokens = None,
    time_scale: TimeScale = None,
    otlp_endpoint: OtlpEndpoint = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a model: prefill, decode, and a prefix cache whose digest the fleet's gateways read."""
    import asyncio

    from replica.device.parallel.group import RankDied
    from replica.model.source import resolve_model
    from replica.protocol.listening import ListenError
    from replica.protocol.signing import FleetKeyError, Signer
    from replica.protocol.text import ModelFolderError
    from replica.publisher import IdTaken, RedisUnreachable
    from replica.run import run

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        timing = timing_config(engine, profile, kv_tokens, time_scale, kv_memory_gib)
        where = device if timing is None else no_device(device)
        on_gpu = device_config(
            where, weights, dtype, kv, gpu_memory_utilization, device_kernels, cuda_graphs, tensor_parallel
        )
        folder, name = resolve_model(model, with_weights=timing is None)
        config = ReplicaConfig(
            folder=folder,
            model_name=served_model_name or name,
            **({"id": id} if id else {}),
            host=host, port=port, advertised_url=url, redis_url=redis_url, fleet=fleet,
            signer=Signer.load(fleet_key_file),
            max_waiting=max_waiting,
            max_waiting_tokens=max_waiting_tokens,
            drain_s=drain_s,
            engine=EngineConfig(
                **_precision(weights, kv, on_gpu),
                threads=threads,
                kv_memory_bytes=None if kv_memory_gib is None else int(kv_memory_gib * 2**30),
                order=order, prefix_cache=prefix_cache, eviction=eviction,
                **_step_limits(max_step_tokens, max_running, timing),
            ),
            timing=timing,
            otlp_endpoint=otlp_endpoint or None,
        )  # fmt: skip
        raise typer.Exit(asyncio.run(run(config)))
    except (ConfigError, FleetKeyError, ListenError, ModelFolderError, RankDied, RedisUnreachable, IdTaken) as error:
        typer.echo(f"ryokan replica: {error}", err=True)
        raise typer.Exit(1) from error


def _precision(weights: str | None, kv: str | None, on_gpu: DeviceConfig | None) -> dict[str, Any]:
    return {"device": on_gpu} if on_gpu is not None else {"weights": weights or "int8", "kv": kv}


def _step_limits(max_step_tokens: int | None, max_running: int | None, timing: TimingConfig | None) -> dict[str, Any]:
    """Those of EngineConfig; where none are given, a profile's own."""
    if timing is not None:
        max_step_tokens = timing.profile.max_step_tokens if max_step_tokens is None else max_step_tokens
        max_running = timing.profile.max_running if max_running is None else max_running
    return {"max_step_tokens": max_step_tokens, "max_running": max_running}


if __name__ == "__main__":
    typer.run(main)
