"""Clusters of two processes and more, of Flink and of Spark, from the jars of `make flink-jar spark-jar`.

Their servers listen on loopback. Workers are this process (LOOPBACK), so a test can act at a known step of a job.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sfumato.pipelines.runners.job_servers import FLINK, SPARK

_FLINK_CONFIGURATION = """
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: localhost
rest.address: localhost
rest.port: {rest}
rest.bind-address: localhost
rest.retry.max-attempts: 2
rest.retry.delay: 500
taskmanager.host: localhost
taskmanager.bind-host: localhost
taskmanager.numberOfTaskSlots: 2
taskmanager.cpu.cores: 2
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
taskmanager.memory.task.heap.size: 512m
taskmanager.memory.task.off-heap.size: 64m
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 256m
taskmanager.memory.network.max: 256m
io.tmp.dirs: {folder}
heartbeat.interval: 1000
heartbeat.timeout: 5000
classloader.resolve-order: parent-first
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 5
restart-strategy.fixed-delay.delay: 1 s
"""
# Java 17 closes these packages of its own, which Flink and Spark reach into.
_OPENED = ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "time", "util", "util.concurrent")
_OPENED_ALL = [
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED),
    *("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"),
]
_JAVA = ["java", "-XX:TieredStopAtLevel=1", *_OPENED_ALL]


def free_ports(count: int) -> list[int]:
    """Ports of loopback at which nothing listens now."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def wait_until(reached: Callable[[], bool], seconds: float = 60) -> None:
    """Waits. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise TimeoutError(f"{reached} not within {seconds} s")
        time.sleep(0.1)


def listens(port: int) -> bool:
    """Whether a server listens at a port of loopback."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Cluster:
    """Processes of an engine on this machine.

    Attributes:
        folder: of their configuration, logs and temporary files.
        options: of jobs that run on the cluster.
        processes: each process that was started, by its role.
    """

    folder: Path
    options: list[str] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, role: str, command: list[str], **environment: str) -> None:
        """Starts a process; its output goes into a file of the folder."""
        with open(self.folder / f"{role}.log", "ab") as log:
            self.processes[role] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **environment}
            )

    def kill(self, role: str) -> None:
        """Ends a process by SIGKILL."""
        self.processes[role].kill()
        self.processes[role].wait()

    def stop(self) -> None:
        """Ends all processes, and those that they started."""
        for process in self.processes.values():
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait()


class FlinkCluster(Cluster):
    """A job manager and a task manager of two slots."""

    def start_job_manager(self) -> None:
        """Starts the job manager, and waits until it accepts jobs."""
        self._run("job_manager", "entrypoint.StandaloneSessionClusterEntrypoint")

    def start_task_manager(self) -> None:
        """Starts a task manager."""
        self._run("task_manager", "taskexecutor.TaskManagerRunner")

    def _run(self, role: str, main: str) -> None:
        jars = Path(os.environ[FLINK.variable]).parent / "lib"
        main = f"org.apache.flink.runtime.{main}"
        self.start(role, [*_JAVA, "-Xmx1g", "-cp", f"{jars}/*", main, "--configDir", str(self.folder)])


@contextmanager
def flink_cluster(folder: Path) -> Iterator[FlinkCluster]:
    """A Flink cluster that restarts failed work up to five times."""
    rpc, rest = free_ports(2)
    folder.mkdir()
    (folder / "flink-conf.yaml").write_text(_FLINK_CONFIGURATION.format(rpc=rpc, rest=rest, folder=folder))
    cluster = FlinkCluster(folder)
    cluster.options = ["--runner_config", "flink", "--open_job_server", "--flink_master", f"http://localhost:{rest}"]
    cluster.options += ["--flink_conf_dir", str(folder)]
    try:
        cluster.start_job_manager()
        cluster.start_task_manager()
        wait_until(lambda: listens(rest))
        yield cluster
    finally:
        cluster.stop()


class SparkCluster(Cluster):
    """A master and a worker that starts executors."""

    def executors(self) -> list[psutil.Process]:
        """The executors that run now."""
        children = psutil.Process(self.processes["worker"].pid).children(recursive=True)
        return [one for one in children if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """A Spark cluster of a master and one worker of two cores."""
    port, worker, web, web_worker = free_ports(4)
    folder.mkdir()
    home = folder / "home"
    home.mkdir()
    (home / "jars").symlink_to(Path(os.environ[SPARK.variable]).parent / "lib")  # executors start with these
    cluster = SparkCluster(folder)
    cluster.options = [
        "--runner_config",
        "spark",
        "--open_job_server",
        "--spark_master_url",
        f"spark://127.0.0.1:{port}",
    ]
    environment = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.12", "SPARK_LOCAL_DIRS": str(folder)}
    java = [*_JAVA, "-cp", f"{home}/jars/*"]
    try:
        at = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)]
        cluster.start("master", [*java, "org.apache.spark.deploy.master.Master", *at], **environment)
        wait_until(lambda: listens(port))
        at = ["--host", "127.0.0.1", "--port", str(worker), "--webui-port", str(web_worker)]
        size = ["--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work")]
        master = f"spark://127.0.0.1:{port}"
        cluster.start("worker", [*java, "org.apache.spark.deploy.worker.Worker", *at, *size, master], **environment)
        wait_until(lambda: listens(worker))
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder / "work", ignore_errors=True)
