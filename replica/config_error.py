"""The one error of all settings."""


class ConfigError(ValueError):
    """A setting is wrong; the message names it."""
