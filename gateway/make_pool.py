"""What one model's pool is made of."""

import secrets

from aiohttp import web

from gateway import policies
from gateway.config import GatewayConfig
from gateway.dispatch import Dispatcher
from gateway.fleet import Fleet
from gateway.hindsight import Hindsight
from gateway.hold.desk import FrontDesk
from gateway.identity import Identity
from gateway.index.factory import make_index
from gateway.intents.outbox import Outbox
from gateway.keys import BUDGET, CLOCK, CONFIG, METRICS, OBSERVER, TRACES, UPSTREAM
from gateway.metrics import Metrics
from gateway.pools import ContextLimit, Pool
from gateway.probes import Prober
from gateway.reload import public_prompts
from gateway.router import Router
from gateway.routing.native.library import the_library
from gateway.routing.registry import make_policy
from gateway.routing.seen import SeenBlocks
from gateway.routing.shadow import Shadow
from gateway.served import ServedModel
from gateway.tokens import PromptTokenizer
from replica.protocol.text import ModelText


def make_pool(config: GatewayConfig, served: ServedModel, text: ModelText, metrics: Metrics) -> Pool:
    """But for what sends requests, which needs connections: see `upstream`."""
    tokenizer = PromptTokenizer(text, config.tokenise_threads)
    tokenizer.public = public_prompts(tokenizer, config)
    identity = Identity.of(text, tokenizer.encoder.encode)
    fleet, index = Fleet(identity), make_index(config.index_max_blocks)
    chosen = policies.chosen(config)
    outbox = Outbox(secrets.token_hex(8), metrics.intents_dropped)
    prober = None
    if served.upstreams:
        prober = Prober(served, config.probe_interval_s, config.upstream_keys, identity, text.max_context, fleet, index)
    return Pool(
        served,
        text,
        tokenizer,
        fleet,
        ContextLimit(fleet, text.max_context),
        index,
        Router(fleet, index, make_policy(chosen.policy), outbox),
        Shadow(make_policy(chosen.shadow) if chosen.shadow else None),
        prober,
    )


def dispatcher_of(app: web.Application, pool: Pool) -> Dispatcher:
    seen = SeenBlocks(library=the_library())
    return Dispatcher(
        pool.router,
        app[UPSTREAM],
        app[BUDGET],
        app[TRACES],
        app[METRICS],
        Hindsight(pool.name, pool.fleet.compatible, app[METRICS], pool.shadow, seen),
        app[CLOCK],
        app[CONFIG].timeouts.queue_s,
        app[OBSERVER],
        FrontDesk(pool.router, app[CONFIG].bounds),
        app[CONFIG].timeouts.first_byte_s,
    )
