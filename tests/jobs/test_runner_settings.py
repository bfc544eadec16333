import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import DirectOptions

from sfumato.pipelines import cli
from sfumato.pipelines.cli import join_negative_values, parse_command
from sfumato.pipelines.failures import error_of
from sfumato.pipelines.run import JOBS, request_class, request_of
from sfumato.pipelines.runner_settings import load_runner_config, runner_settings
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.requests.request_base import HELP_GROUPS
from tests import ROOT

FILES = ["--input", "x", "--output", "y"]
HEATMAP = ["--input", "x", "--output", "y", "--region", "0,0,1,1"]
SHIPPED = sorted((ROOT / "runner_configs").glob("*.yaml"))


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
    settings = runner_settings("direct_threads", ["--direct_num_workers=3"])
    direct = settings.options.view_as(DirectOptions)
    assert direct.direct_num_workers == 3
    assert settings.local


def test_the_number_of_threads_follows_the_size_unless_it_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.pipelines.runner_settings.processors", lambda: 6)

    def threads(size: int, *flags: str) -> int:
        return runner_settings(None, flags).sized(size).options.view_as(DirectOptions).direct_num_workers

    assert threads(10**6) == 1
    assert threads(10**9) == 6
    assert threads(10**9, "--direct_num_workers=1") == 1
    assert threads(1000, "--direct_num_workers=3") == 3


@pytest.mark.parametrize("mode", ["multi_threading", "multi_processing"])
@pytest.mark.parametrize("runner", ["DirectRunner", "FnApiRunner"])
def test_modes_that_open_servers_are_refused(mode: str, runner: str) -> None:
    with pytest.raises(RequestError, match=r"listen on all network interfaces.*--runner_config direct_threads"):
        runner_settings(None, [f"--runner={runner}", f"--direct_running_mode={mode}"])
    assert runner_settings(None, ["--direct_running_mode=in_memory"]).local


@pytest.mark.parametrize("flag", ["--nonsense", "--nonsense=1", "-x"])
def test_unknown_flags_are_refused_by_name(flag: str) -> None:
    with pytest.raises(RequestError, match=flag.split("=")[0]):
        runner_settings(None, [flag])


@pytest.mark.parametrize("name", ["DaskRunner", "apache_beam.runners.dask.dask_runner.DaskRunner"])
def test_dask_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="DaskRunner silently leaves out stages"):
        runner_settings(None, [f"--runner={name}"])


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


@pytest.mark.parametrize("job", JOBS)
def test_help_shows_an_example_and_the_common_options_in_under_70_lines(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*job.split(), "--help"]) == 0
    common = capsys.readouterr().out
    assert len(common.splitlines()) < 70
    assert common.index("example:") < common.index("\n  --") if "\n  --" in common else "example:" in common
    assert cli.main([*job.split(), "--help-all"]) == 0
    every = capsys.readouterr().out
    for name, field in request_class(job).model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        shown = str(extra["metavar"]) if extra["style"] == "positional" else f"--{name}"
        assert shown in every
        if extra["common"] or field.is_required():
            assert shown in common


@pytest.mark.parametrize("job", JOBS)
def test_every_option_has_a_help_text_and_a_group(job: str) -> None:
    for field in request_class(job).model_fields.values():
        assert field.description
        assert isinstance(field.json_schema_extra, dict)
        assert field.json_schema_extra["group"] in HELP_GROUPS


@pytest.mark.parametrize("job", JOBS)
def test_every_example_is_a_request(job: str) -> None:
    kind = request_class(job)
    request, left = parse_command(kind, shlex.split(kind.EXAMPLE))
    assert left == []
    assert request_of(job, {name: getattr(request, name) for name in request.model_fields_set}) == request


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heatmap", "--input", "x", "--output", "y"], "region: required, as in sfumato heatmap --input"),
        (["heatmap", "--regoin", "0,0,1,1"], "unknown option --regoin; did you mean --region?"),
        (["heatmap", *HEATMAP, "--depth", "x"], "depth: must be a whole number in 1..20, got 'x'"),
        (["heatmap", *HEATMAP, "--depth", "21"], "depth: must be a whole number in 1..20, got '21'"),
        (["heatmap", *HEATMAP, "--simulated_dropout", "2"], "simulated_dropout: must be a number in [0, 1], got '2'"),
        (["heatmap", *HEATMAP, "--region", "0,0,1"], "region: expected four numbers WEST,SOUTH,EAST,NORTH"),
        (["plan", "--users", "1000", "--epsilom", "1"], "unknown option --epsilom; did you mean --epsilon?"),
        (["key", "make", "x"], "action: must be one of new, got 'make'"),
        (["ledger", "show"], "ledger: required"),
        (["histogram", "--input", "x", "--output", "y"], "column, region: give --column NAME or --cells DEPTH"),
        (["ranges", "bild"], "no job named 'ranges bild'; did you mean ranges build?"),
    ],
)
def test_bad_arguments_are_named_before_any_pipeline_is_imported(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


QUICK = [
    *([*job.split(), "--help"] for job in JOBS),
    ["heatmap", "--regoin", "0,0,1,1"],
    ["heatmap", *HEATMAP, "--depth", "21"],
    ["plan", "--users", "1000000"],
    ["key", "new", "FILE"],
    ["ledger", "show", "--ledger", "FILE"],
    ["ledger", "limit", "--ledger", "FILE", "--dataset", "taxis", "--budget", "1/1d"],
    ["ledger", "backup", "copy", "--ledger", "FILE"],
    ["histogram", "--colum", "x"],
    ["histogram", *FILES, "--column", "kind", "--delta", "2"],
    ["histogram", *FILES, "--column", "kind", "--contact", "limited"],
    ["hotspots", *FILES, "--column", "kind", "--levels", "40"],
    ["quantiles", *FILES, "--column", "km", "--range", "0,1", "--quantiles", "1.5"],
    ["moments", *FILES, "--column", "km", "--epsilon", "1", "--bits_per_client", "20"],
    ["moments", *FILES, "--column", "km", "--epsilon", "1", "--warm_start", "nowhere"],
    ["heatmap", *HEATMAP, "--warm_start", "nowhere"],
    ["heatmap", *HEATMAP, "--delta", "1e-20"],
    ["ranges", "build", *FILES, "--region", "0,0,1,1", "--method", "ug", "--trust", "secagg"],
    ["ranges", "build", *FILES, "--region", "0,0,1,1", "--method", "grid", "--sizes", "100,25"],
    ["moments", "--input", "x", "--output", "y", "--column", "c", "--bits", "x"],
]
# Each command runs in a fork of a process that has imported the command line and nothing else.
RUN_QUICK = """
import json, os, sys
from sfumato.pipelines import cli
for arguments in json.load(sys.stdin):
    if not os.fork():
        cli.main(arguments)
        print([name for name in ("apache_beam", "pandas", "matplotlib") if name in sys.modules], file=sys.stderr)
        sys.stderr.flush()
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The large packages that are loaded once a quick command has run, by command."""
    folder = tmp_path_factory.mktemp("quick")
    commands = [
        [str(folder / str(number)) if one == "FILE" else one for one in arguments]
        for number, arguments in enumerate(QUICK)
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUN_QUICK], input=json.dumps(commands), capture_output=True, text=True, check=True
    )
    found = [line for line in done.stderr.splitlines() if line.startswith("[")]
    return dict(zip(map(" ".join, QUICK), found, strict=True))


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_quick_commands_import_no_beam(arguments: list[str], loaded: dict[str, str]) -> None:
    assert loaded[" ".join(arguments)] == "[]"


@pytest.mark.parametrize("kind", [DataError, RequestError])
def test_worker_errors_are_found_in_wrapped_tracebacks(kind: type[Exception]) -> None:
    name = f"sfumato.schemas.errors.{kind.__name__}"
    text = f"Traceback ...\n  File x\n{name}: too few users; nothing [while running 'A/B']\n"
    found = error_of(RuntimeError(text))
    assert type(found) is kind
    assert str(found).startswith("too few users; nothing")
    assert error_of(RuntimeError("something else")) is None
    assert error_of(RuntimeError(f"Traceback ...\n{kind.__name__}: quoted from a file\n")) is None


def test_a_misspelt_beam_option_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "runner.yaml").write_text("max_num_workerss: 3\n")
    with pytest.raises(RequestError, match=r"unknown option --max_num_workerss: .*; did you mean --max_num_workers\?"):
        load_runner_config(str(tmp_path / "runner.yaml"))


def test_text_and_python_values_make_the_same_request() -> None:
    text = {"input": "x", "output": "y", "region": "-1,0,1.5,2", "depth": "6", "categories": "a,b", "auxiliary": "c"}
    values = {**text, "region": [-1, 0, 1.5, 2], "depth": 6, "categories": ["a", "b"], "colluding": None}
    assert request_of("heatmap", text) == request_of("heatmap", values)


def test_a_pipeline_leaves_no_folder_to_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pipeline = runner_settings(None, []).pipeline()
    assert pipeline.local_tempdir.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
