from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import DirectOptions, GoogleCloudOptions

from sfumato.pipelines import cli
from sfumato.pipelines.options import join_negative_values, load_runner_config, runner_settings
from sfumato.pipelines.refresh import arguments_of
from sfumato.schemas.errors import DataError, RequestError

SHIPPED = sorted((Path(__file__).parents[2] / "runner_configs").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads_by_path_and_by_name(path: Path) -> None:
    flags = load_runner_config(str(path))
    assert flags
    assert load_runner_config(path.stem) == flags
    assert any(flag.startswith("--runner=") for flag in flags)


def test_what_is_shipped() -> None:
    assert {path.stem for path in SHIPPED} >= {"direct", "direct_threads", "dataflow"}


def test_unknown_keys_are_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("runner: DirectRunner\ndirect_runing_mode: in_memory\n")
    with pytest.raises(RequestError, match=r"mine\.yaml: unknown option --direct_runing_mode"):
        load_runner_config(str(config))


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", "just words"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(text)
    with pytest.raises(RequestError, match="runner_config"):
        load_runner_config(str(config))


def test_the_command_line_wins_over_the_configuration() -> None:
    settings = runner_settings("direct_threads", None, ["--direct_num_workers=3"])
    direct = settings.options.view_as(DirectOptions)
    assert direct.direct_num_workers == 3
    assert settings.local


def test_the_number_of_threads_follows_the_size_unless_it_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.pipelines.options.processors", lambda: 6)

    def threads(size: int, *flags: str) -> int:
        return runner_settings(None, None, flags).sized(size).options.view_as(DirectOptions).direct_num_workers

    assert threads(10**6) == 1
    assert threads(10**9) == 6
    assert threads(10**9, "--direct_num_workers=1") == 1
    assert threads(1000, "--direct_num_workers=3") == 3


@pytest.mark.parametrize("mode", ["multi_threading", "multi_processing"])
@pytest.mark.parametrize("runner", ["DirectRunner", "FnApiRunner"])
def test_modes_that_open_servers_are_refused(mode: str, runner: str) -> None:
    with pytest.raises(RequestError, match=r"listen on all network interfaces.*--runner_config direct_threads"):
        runner_settings(None, None, [f"--runner={runner}", f"--direct_running_mode={mode}"])
    assert runner_settings(None, None, ["--direct_running_mode=in_memory"]).local


def test_the_maps_region_is_not_dataflows() -> None:
    settings = runner_settings(None, "europe-west3", [])
    assert settings.options.view_as(GoogleCloudOptions).region == "europe-west3"


@pytest.mark.parametrize("flag", ["--nonsense", "--nonsense=1", "-x"])
def test_unknown_flags_are_refused_by_name(flag: str) -> None:
    with pytest.raises(RequestError, match=flag.split("=")[0]):
        runner_settings(None, None, [flag])


@pytest.mark.parametrize("name", ["DaskRunner", "apache_beam.runners.dask.dask_runner.DaskRunner"])
def test_dask_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="DaskRunner leaves out stages"):
        runner_settings(None, None, [f"--runner={name}"])


@pytest.mark.parametrize(
    ("given", "joined"),
    [
        (["--region", "-1,2,3,4", "--depth", "3"], ["--region=-1,2,3,4", "--depth", "3"]),
        (["--region", "-.5,2,3,4"], ["--region=-.5,2,3,4"]),
        (["--overwrite", "--depth", "3"], ["--overwrite", "--depth", "3"]),
        (["--region=-1,2,3,4"], ["--region=-1,2,3,4"]),
    ],
)
def test_values_that_begin_with_a_minus_sign(given: list[str], joined: list[str]) -> None:
    assert join_negative_values(given) == joined


def test_the_command_without_and_with_wrong_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "heatmap" in capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert cli.main(["--version"]) == 0
    assert cli.main(["heatmaps"]) == 2
    assert "no job named 'heatmaps'" in capsys.readouterr().err


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        cli.main(["heatmap", "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for option in ("--input", "--region", "--calibration", "--simulated_dropout", "--runner_config", "--key_file"):
        assert option in text


@pytest.mark.parametrize("kind", [DataError, RequestError])
def test_worker_errors_are_found_in_wrapped_tracebacks(kind: type[Exception]) -> None:
    name = f"sfumato.schemas.errors.{kind.__name__}"
    text = f"Traceback ...\n  File x\n{name}: too few users; nothing [while running 'A/B']\n"
    found = cli.worker_error(RuntimeError(text))
    assert type(found) is kind
    assert str(found).startswith("too few users; nothing")
    assert cli.worker_error(RuntimeError("something else")) is None
    assert cli.worker_error(RuntimeError(f"Traceback ...\n{kind.__name__}: quoted from a file\n")) is None


def test_a_misspelt_beam_option_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "runner.yaml").write_text("max_num_workerss: 3\n")
    with pytest.raises(RequestError, match=r"unknown option --max_num_workerss: .*; did you mean --max_num_workers\?"):
        load_runner_config(str(tmp_path / "runner.yaml"))


def test_values_become_arguments() -> None:
    values = {"a": True, "b": False, "c": None, "d": [-1, 2.5], "e": "-3", "f": 0}
    assert arguments_of(values) == ["--a", "--d=-1,2.5", "--e=-3", "--f=0"]
