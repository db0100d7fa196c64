import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError, GatewayConfig, Timeouts
from gateway.settings import FILE_ONLY, Settings, flag_of, load, variable_of
from tests.processes import ROOT

MINIMAL = 'model = "m"\nredis_url = "redis://h:1"\n'


def read(folder: Path, text: str, **flags: Any) -> GatewayConfig:
    path = folder / "gateway.toml"
    path.write_text(MINIMAL + text)
    return load(path, flags)


def test_without_more_all_is_as_the_settings_of_a_gateway_begin(tmp_path: Path) -> None:
    config = load(None, {"model": "m", "redis_url": "redis://h:1"})
    assert config == GatewayConfig(model=Path("m"), redis_url="redis://h:1")


def test_a_file_says_it_all(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("You are a concierge.")
    (tmp_path / "admin").write_text("admin-0123456789abcdef\n")
    config = read(
        tmp_path,
        """
port = 9000
policy = "least_tokens"
queue_timeout = 3
replica_networks = ["10.0.0.0/8"]
cors_origins = ["https://chat.example"]
admin_key_file = "admin"
isolate_tenants = false
body_limit_mib = 2
[public_prompts]
travel = "You know hotels."
concierge = { file = "prompt.txt" }
""",
    )
    assert (config.port, config.policy, config.timeouts) == (9000, "least_tokens", Timeouts(queue_s=3))
    assert (config.replica_networks, config.cors_origins) == (("10.0.0.0/8",), ("https://chat.example",))
    assert (config.admin_key, config.isolate_tenants, config.body_limit) == ("admin-0123456789abcdef", False, 2 << 20)
    assert config.public_prompts == {"travel": "You know hotels.", "concierge": "You are a concierge."}
    assert set(config.files) == {tmp_path / name for name in ("gateway.toml", "admin", "prompt.txt")}


def test_a_flag_goes_before_the_file_and_that_before_the_default(tmp_path: Path) -> None:
    config = read(tmp_path, 'port = 9000\nfleet = "of-file"\n', port=9001, fleet=None, cors_origins="*, http://a")
    assert (config.port, config.fleet, config.host) == (9001, "of-file", "127.0.0.1")
    assert config.cors_origins == ("*", "http://a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "gateway.toml: prot: there is no such setting"),
        ("port = 70000", "gateway.toml: port: Input should be less than or equal to 65535"),
        ('port = "high"', "gateway.toml: port: Input should be a valid integer"),
        ("queue_timeout = 0", "gateway.toml: queue_timeout: Input should be greater than 0"),
        ("grace = inf", "gateway.toml: grace: Input should be a finite number"),
        ('log_level = "loud"', "gateway.toml: log_level: Input should be 'debug', 'info', 'warning' or 'error'"),
        ('fleet = "a b"', "gateway.toml: fleet must be a plain name"),
        ('cors_origins = ["a"]', "gateway.toml: cors_origins: 'a' is no origin"),
        ("cors_origins = [1]", "gateway.toml: cors_origins.0: Input should be a valid string"),
        ("[public_prompts]\na = { flie = 1 }", "gateway.toml: public_prompts.a"),
        ('[public_prompts]\na = { file = "none.txt" }', "public_prompts.a: .*none.txt: No such file"),
        ('admin_key_file = "/none"', "admin key file /none"),
        ('admin_port = 1\nadmin_host = "0.0.0.0"', "admin_host"),
        ("admin_port = 8000", "admin_port must be another than port"),
        ('access_log = ""', "gateway.toml: access_log must be a file, - or off"),
        ('otlp_endpoint = "collector:4318"', "gateway.toml: otlp_endpoint must be a URL"),
        ("port = ?", r"gateway.toml: it is no TOML \(at line 3, column 8"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        read(tmp_path, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("said", "meant"), [("a.log", "{}/a.log"), ("-", "-"), ("off", "off"), ("/a.log", "/a.log")])
def test_the_access_log_is_a_file_beside_the_settings_or_no_file_at_all(tmp_path: Path, said: str, meant: str) -> None:
    assert read(tmp_path, f'access_log = "{said}"').access_log == meant.format(tmp_path)
    assert read(tmp_path, "", access_log="b.log").access_log == "b.log"


def test_a_wrong_flag_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--retry-budget or RYOKAN_RETRY_BUDGET: Input should be less"):
        read(tmp_path, "retry_budget = 0.1", retry_budget=2)
    with pytest.raises(ConfigError, match="redis_url or upstreams: one of them"):
        load(None, {"model": "m"})
    with pytest.raises(ConfigError, match="model is missing"):
        load(None, {"redis_url": "redis://h:1"})


def test_f11_a_password_in_the_file_stays_there(tmp_path: Path) -> None:
    for text in ('redis_url = "redis://:geheim@h/x"\nmodel = "m"', 'model = 1\nredis_url = "redis://:geheim@h"'):
        (tmp_path / "f.toml").write_text(text)
        with pytest.raises(ConfigError) as refused:
            load(tmp_path / "f.toml", {})
        assert "geheim" not in str(refused.value)


def gateway(*flags: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *map(str, flags)]
    environment = os.environ | {f"RYOKAN_{name}": value for name, value in variables.items()}
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)


def test_check_says_ok_or_what_is_wrong(model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    good = f'model = "{model_folder}"\nredis_url = "redis://127.0.0.1:1"\n'
    cases = [
        ("", 0, "ok"),
        ("prot = 1", 2, f"{path}: prot: there is no such setting"),
        ('policy = "nonsense"', 2, "unknown policy 'nonsense'"),
        ('keys_file = "/none.toml"', 2, "key file /none.toml"),
    ]
    for text, code, said in cases:
        path.write_text(f"{good}{text}\n")
        done = gateway("--config", path, "--check")
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
        assert (done.stdout + done.stderr).count("\n") == 1
    path.write_text('model = "/none"\nredis_url = "redis://h:1"\n')
    done = gateway("--config", path, "--check")
    assert (done.returncode, "model: " in done.stderr) == (2, True)


def test_flags_go_before_variables_and_these_before_the_file(model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(f'model = "{model_folder}"\nredis_url = "redis://h:1"\npolicy = "of-file"\n')

    def policy(*flags: str, **variables: str) -> str:
        done = gateway("--check", *flags, **variables)
        return found[1] if (found := re.search("unknown policy '(.*?)'", done.stderr)) else done.stderr

    assert policy("--config", str(path)) == "of-file"
    assert policy(CONFIG=str(path)) == "of-file"
    assert policy(CONFIG=str(path), POLICY="of-variable") == "of-variable"
    assert policy("--policy", "of-flag", CONFIG=str(path), POLICY="of-variable") == "of-flag"
    # Kubernetes sets this one to an address for a service named ryokan.
    assert policy("--config", str(path), PORT="tcp://10.0.0.1:80") == "of-file"
    assert "HTTP_PORT" in policy("--config", str(path), HTTP_PORT="high")


def test_each_setting_is_a_flag_with_a_variable() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "--help"],
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | {"COLUMNS": "300"},
    )
    for name, field in Settings.model_fields.items():
        assert field.description
        if name not in FILE_ONLY:
            assert flag_of(name) in done.stdout
            assert variable_of(name) in done.stdout


def test_the_example_has_every_setting_with_its_default(tmp_path: Path) -> None:
    example = (ROOT / "deploy" / "gateway.toml").read_text()
    plain = tomllib.loads(example)
    assert plain == {"redis_url": "redis://127.0.0.1:6379"}
    lines = [line.removeprefix("# ") for line in example.splitlines()]
    everything = tomllib.loads("\n".join(line for line in lines if re.match(r"[a-z_]+ = |\[", line)))
    assert everything.keys() == Settings.model_fields.keys()
    Settings.model_validate(everything)
    for name, field in Settings.model_fields.items():
        if field.default not in (None, [], {}) and not field.is_required():
            assert everything[name] == field.default, name
