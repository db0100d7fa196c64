"""Whether settings can be used, as far as that shows without serving."""

from gateway.config import ConfigError, GatewayConfig
from gateway.policies import PolicyFileError, chosen
from gateway.reload import public_prompts, read_key_set
from gateway.routing.registry import UnknownPolicy, make_policy
from gateway.served import ServedModel
from gateway.tenants.key_file import KeyFileError
from gateway.tokens import PromptTokenizer
from replica.protocol.text import ModelFolderError, ModelText


class CheckError(ValueError):
    """The message names the setting, and the file where it is in one."""


def check_choices(config: GatewayConfig) -> None:
    """What is quick to tell. Raises CheckError."""
    try:
        names = chosen(config)
        for name in filter(None, (names.policy, names.shadow)):
            make_policy(name)
        read_key_set(config)
    except (UnknownPolicy, PolicyFileError, KeyFileError) as error:
        raise CheckError(str(error)) from error


def check(config: GatewayConfig) -> None:
    """All but what depends on others: whether ports are free, and Redis is there. Raises CheckError."""
    check_choices(config)
    for served in config.served:
        _check_model(config, served)


def _check_model(config: GatewayConfig, served: ServedModel) -> None:
    try:
        text = ModelText.load(served.folder, served.name)
    except ModelFolderError as error:
        raise CheckError(f"{f'models.{served.name}.' if config.models else ''}model: {error}") from error
    tokenizer = PromptTokenizer(text, 1)
    try:
        public_prompts(tokenizer, config)
    except ConfigError as error:
        raise CheckError(str(error)) from error
    finally:
        tokenizer.close()
