"""The documents are true: code runs, commands and options exist, links resolve, generated pages are up to date."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import matplotlib as mpl
import pytest

import sfumato
from benchmarks.comparison import compare_on_map
from benchmarks.synthetic_maps import KINDS, synthetic_map
from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.run import JOBS, Command, request_class
from sfumato.schemas.errors import BudgetError, RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.transforms.counting.methods import METHODS
from sfumato.transforms.heatmap.request import parameter_owners
from sfumato.transforms.moments.statistic_kinds import STATISTICS
from tests import ROOT
from tests.once import made_once
from tests.two_servers import City

pytestmark = pytest.mark.usefixtures("blank_pictures")  # nothing here looks at them

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "runner_configs").rglob("*.md"))
)
OURS = [page for page in PAGES if not page.startswith("runner_configs/")]  # the others have tests of their own
TUTORIALS = [page for page in PAGES if page.startswith("docs/tutorials/")]
RUN = [f"docs/how_to/add_a_{what}.md" for what in ("method", "statistic", "job")]  # by tests of their own
TAPS = [
    "rider;time;lat;lon",
    "007;06.10.2026 08:30;52,5;13,4",
    "8;06.10.2026 23:59;13,4;52,51",
    "9;07.10.2026 00:00;0;0",
    "10;never;0,0;0,0",
]
REGION = "3.00,1.00,3.13,1.13"
FOREIGN = {  # options of other programs, of Beam, and of the benchmarks
    *("--batch", "--cell", "--epochs", "--lengths", "--map", "--weights", "--moments"),
    *("--jobs", "--sizes", "--repeats", "--baselines", "--sampled", "--runs"),
    *("--project", "--setup_file", "--temp_location", "--direct_num_workers", "--direct_running_mode", "--job-host"),
    *("--open_job_server", "--environment_type", "--environment_config", "--job_endpoint", "--service_port"),
    "--job_server_jvm_properties",
    *("--port", "--fully_qualified_name_glob", "--serve_loopback_worker", "--yaml_pipeline_file"),
    *("--runner", "--jobEndpoint", "--defaultEnvironmentType", "--defaultEnvironmentConfig", "--endpoint"),
    *("--environmentCacheMillis", "--job-port", "--artifact-port", "--expansion-port", "--flink-master"),
    *("--no-deps", "--wheel-dir"),
    *("--headless", "--no-pdf-header-footer", "--print-to-pdf"),
    *("--map-root-user", "--net", "--number_of_execution_retries", "--help", "--help-all", "--directory"),
    *(
        "--requirements_file",
        "--requirements_cache",
        "--sdk_container_image",
        "--service_account_email",
        "--machine_type",
        "--max_num_workers",
    ),
    *("--overhead", "--vcpu_hour", "--gb_hour", "--shuffle_gb", "--require-hashes"),
    *("--against", "--output", "--strict", "--data", "--plot", "--picture", "--clients", "--figures", "--repetitions"),
    *(
        "--lists",
        "--rates",
        "--maps",
        "--only",
        "--seeds",
        "--choices",
        "--in_memory",
        "--options",
        "--mean_only",
        "--tasks",
    ),
    *("--two_releases", "--keys", "--methods", "--metrics", "--dropout_margin", "--earlier_releases"),
    *("--sketch_estimate", "--budget_doubling"),  # parameters of methods in the benchmarks
}


def load_reference():
    spec = importlib.util.spec_from_file_location("generate_reference", ROOT / "docs" / "generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = load_reference()


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), flags=re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The `sfumato` commands that a page shows in blocks of code, as arguments."""
    lines = text_of(page).replace("\\\n", " ").splitlines()
    found = [re.match(r"(?: {4}|\t)(?:\$\(BIN\)/)?sfumato (?=[a-z]+(?: |$))([^|>]*)$", line) for line in lines]
    return [shlex.split(one[1].replace("$(REGION)", REGION)) for one in found if one]


@pytest.fixture(scope="session")
def demo_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of 30,000 users."""
    for job in JOBS:
        request_class(job)  # help texts list what the registries hold before a test adds to them
    return made_once(tmp_path_factory, "demo_logs", lambda folder: sfumato.synth(folder / "logs", users=30_000))


@pytest.fixture(scope="session")
def demo_releases(demo_logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A heatmap and a model of range queries of these logs."""

    def make(folder: Path) -> None:
        logs = demo_logs / "logs"
        sfumato.heatmap(logs, region=REGION, depth=8, output=folder / "release", seed=1)
        sfumato.ranges(logs, region=REGION, method="grid", output=folder / "ranges", seed=1)

    return made_once(tmp_path_factory, "demo_releases", make)


@pytest.fixture
def demo(demo_logs: Path, demo_releases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with all of it in `demo/`, which a test may change."""
    for made in (demo_logs, demo_releases):
        shutil.copytree(made, tmp_path / "demo", dirs_exist_ok=True)
    (tmp_path / "demo" / "taps.csv").write_text("\n".join(TAPS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- code ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES if page not in RUN for number in range(len(blocks(page)))],
)
def test_the_code_on_a_page_runs(page: str, number: int, demo: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = blocks(page)[number]
    if "task.json" in code:
        City.new(demo, start="2000-01-01T00:00:00+00:00", end="2100-01-01T00:00:00+00:00")
    if "published/releases" in code:
        for day in ("2026-11-19", "2026-11-20"):
            sfumato.histogram(
                "demo/logs", h3=6, region=REGION, trust="central", output=f"published/releases/{day}", seed=1
            )
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    with mpl.rc_context({"backend": "agg"}):
        exec(code, {})
    assert "print(" not in code or capfd.readouterr().out.strip()
    if "corrected.csv" in code:
        assert Path("demo/corrected.csv").read_text().splitlines() == [*TAPS[:2], "8;06.10.2026 23:59;52,51;13,4"]
    if "dt={day}" in code:
        days = {path.parent.name: path.read_text().splitlines() for path in Path("demo/nightly/logs").glob("*/*.csv")}
        assert days == {"dt=2026-10-06": TAPS[:3], "dt=2026-10-07": [TAPS[0], TAPS[3]]}


@pytest.mark.slow
def test_a_method_of_a_readers_own(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The document's method, which registers itself, runs through a comparison, plan and the job."""
    (code,) = blocks("docs/how_to/add_a_method.md")
    (tmp_path / "even_method.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS, "even", METHODS["flat"])  # the entry is removed after the test
    importlib.import_module("even_method")
    files = ["--input", f"{demo}/demo/logs/*.parquet", "--seed", "1", "--region", REGION]
    assert cli.main(["plan", "--users", "30000", "--method", "even"]) == 0
    capfd.readouterr()
    assert cli.main(["heatmap", *files, "--method", "even", "--output", str(tmp_path / "map")]) == 0
    # Its one file is enough: the page, the manifest and the errors that the map states have it.
    release = sfumato.open_release(tmp_path / "map")
    assert (release.manifest["parameters"]["method"], release.manifest["parameters"]["deviations"]) == ("even", 2.0)
    assert METHODS["even"].SENTENCE in (tmp_path / "map" / "index.html").read_text()
    assert "independent" in release.manifest["errors"]["sums"]
    truth = synthetic_map(KINDS[0])
    options = "--depth 9 --methods even,flat --users 20000 --metrics mse"
    table = {row.setting.method: row.metrics["mse"].value for row in compare_on_map("lagos", options, truth, 2)[0]}
    assert table["even"] < table["flat"]


@pytest.mark.slow
@pytest.mark.false_alarm(1e-8)
def test_a_statistic_of_a_readers_own(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document's statistic, put into the registry as it says, is published by the job and by the transform."""
    (code,) = blocks("docs/how_to/add_a_statistic.md")
    (tmp_path / "standard_deviation.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    kind = importlib.import_module("standard_deviation").STANDARD_DEVIATION
    monkeypatch.setitem(STATISTICS, "standard_deviation", kind)
    ((_, *arguments),) = commands("docs/how_to/add_a_statistic.md")
    assert cli.main(["moments", *arguments, "--seed", "1"]) == 0
    release = sfumato.open_release("out")
    assert "standard_deviation" in release.manifest["parameters"]["statistics"]
    assert "standard deviation" in (tmp_path / "out" / "index.html").read_text().lower()
    rows = release.moments.set_index("statistic")
    found = rows.loc["standard_deviation"]
    # The synthetic city's is 3.36 km. The 95% interval is 3.9 deviations wide: false with probability 4e-9.
    assert abs(found.value - 3.36) < 1.5 * (found.high - found.low)


def test_a_job_of_a_readers_own(
    demo_logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document's job, put into the registry as it says, publishes, and charges a ledger once."""
    (code,) = blocks("docs/how_to/add_a_job.md")
    (tmp_path / "users.py").write_text(code)
    spec = importlib.util.spec_from_file_location("sfumato.pipelines.users", tmp_path / "users.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "sfumato.pipelines.users", module)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    (line,) = re.findall(r'^ +"users": (Command\(.*\)),$', text_of("docs/how_to/add_a_job.md"), flags=re.MULTILINE)
    monkeypatch.setitem(JOBS, "users", eval(line, {"Command": Command}))
    assert cli.main(["users", "--help"]) == 0
    assert "how many users have a record" in capsys.readouterr().out
    (shown,) = re.findall(r"^    sfumato (users .*)$", text_of("docs/how_to/add_a_job.md"), flags=re.MULTILINE)
    (tmp_path / "demo").symlink_to(demo_logs)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["key", "new", str(tmp_path / "key")]) == 0
    charge = ["--ledger", str(tmp_path / "ledger.db"), "--dataset", "city", "--period", "2026-11-20"]
    budget = ["--budget", "0.1/1d", "--key_file", str(tmp_path / "key"), "--release_id", "first"]
    for _ in range(2):  # the second run finds the release
        assert cli.main([*shlex.split(shown), *charge, *budget]) == 0
    results = sfumato.open_release("users").manifest["results"]
    assert abs(results["users"] - 30_000) < 20 * results["users_stddev"]
    second = ["--output", "again", "--release_id", "second"]
    assert cli.main([*shlex.split(shown), *charge, *budget, *second]) == BudgetError.exit_code
    assert cli.main([*shlex.split(shown), "--epsilon", "0", "--output", "none"]) == RequestError.exit_code


# --- commands and options ---


@pytest.mark.parametrize("page", [page for page in OURS if commands(page) and page not in RUN])
def test_the_commands_on_a_page_have_only_options_that_exist(page: str) -> None:
    for arguments in commands(page):
        words = [word for word in arguments[:2] if re.fullmatch(r"(--)?[a-z_]+", word)]  # zones --release is a command
        command = next(name for name in (" ".join(words), words[0]) if name in REFERENCE.COMMANDS)
        known = set(", ".join(one.name for one in REFERENCE.command_options(command)).split(", "))
        if command == "audit --job":  # the options of the audited job follow
            known |= set(", ".join(one.name for one in REFERENCE.command_options(arguments[2])).split(", "))
        given = {word.split("=")[0] for word in arguments if word.startswith("--")} - set(command.split())
        assert given <= known | FOREIGN, command


def test_every_option_that_a_page_names_exists() -> None:
    options = [one for command in REFERENCE.COMMANDS for one in REFERENCE.command_options(command)]
    known = set(", ".join(one.name for one in options).split(", "))
    known |= {word for command in REFERENCE.COMMANDS for word in command.split()}
    parameters = {f"--{name}" for name in parameter_owners()}  # which `benchmarks.comparison` takes by name
    for page in set(OURS) - {"CHANGELOG.md"}:  # which names what is gone
        named = set(re.findall(r"(?<![\w-])--[a-z]\w*(?:-\w+)*", text_of(page)))
        named -= parameters if page.startswith("docs/results/") else set()
        assert {one for one in named - FOREIGN if not one.startswith(("--flink_", "--spark_", "--prism_"))} <= known, (
            page
        )


def test_the_tutorials_commands_are_those_that_make_demo_runs() -> None:
    """CI runs them as `make demo`, so the two must not drift apart."""

    def shown(page: str) -> set[str]:
        found = (" ".join(shlex.quote(one) for one in arguments) for arguments in commands(page))
        return {one.replace(" --overwrite", "") for one in found if "demo/" in one and "demo/tuner" not in one}

    tutorials = set.union(*map(shown, TUTORIALS))
    assert len(tutorials) == 25
    assert tutorials == shown("Makefile")
    assert shown("README.md") <= tutorials


def test_the_plan_in_the_tutorial_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--users", "100000", "--epsilon", "1"]) == 0
    lines = [f"    {line}" if line else "" for line in capsys.readouterr().out.rstrip().splitlines()]
    assert "\n".join(lines) in text_of("docs/tutorials/plan.md")


def test_tutorial_shows_the_configuration_that_it_copies() -> None:
    (shown,) = blocks("docs/tutorials/nightly.md", "yaml")
    assert shown == (ROOT / "runner_configs" / "schedules" / "refresh.yaml").read_text()


# --- pages ---


def test_the_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_resolve(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" not in target and not target.startswith("#"):
            assert (ROOT / page).parent.joinpath(target.split("#")[0]).exists(), target


@pytest.mark.slow
def test_generated_pages_are_up_to_date() -> None:
    assert REFERENCE.main(["--check"]) == 0


@pytest.mark.slow
def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    """Strict: an anchor or a page that does not exist is an error, and so is a page that no menu has."""
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"|<link[^>]*\shref="([^"]+)"', page.read_text())
        assert not [one for pair in loaded for one in pair if "://" in one], page


def test_the_table_of_trust_models_is_what_the_jobs_offer() -> None:
    rows = re.findall(
        r"^\| `([a-z ]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text_of("docs/explanation/trust.md"), re.M
    )
    shown = {job: dict(zip(Trust, cells, strict=True)) for job, *cells in rows if job in JOBS}
    assert set(shown) == {job for job, one in JOBS.items() if one.publishes}
    for job, cells in shown.items():
        field = request_class(job).model_fields["trust"]
        assert {trust for trust, cell in cells.items() if cell != "no"} == set(get_args(field.annotation))
        assert [trust for trust, cell in cells.items() if cell == "default"] == [field.default]
