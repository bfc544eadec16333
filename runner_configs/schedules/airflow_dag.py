"""Airflow, 3.2 or later: publishes each day's private map. Copy this file into the DAGs folder, adapt the constants.

Catch-up is the backfill: every day since START has a run, oldest first and one at a time, so that each map starts
from the previous one. Runs may be cleared and repeated: a day is charged to the ledger once, and a published day costs
nothing more.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowException, AirflowFailException

SFUMATO = "/opt/sfumato/bin/sfumato"
CONFIG = "/etc/sfumato/refresh.yaml"
START = pendulum.datetime(2026, 11, 1, tz="UTC")

NEEDS_A_PERSON = (1, 2, 3, 4)
"""Exit statuses that no retry can change: the data, the configuration, the budget, the ledger. 75: try again later."""


class Refresh(BashOperator):
    """A BashOperator without retries for exit statuses that need a person."""

    def execute(self, context: Any) -> Any:
        try:
            return super().execute(context)
        except AirflowException as error:
            process = self.subprocess_hook.sub_process
            if process is not None and process.returncode in NEEDS_A_PERSON:
                raise AirflowFailException(str(error)) from None
            raise


with DAG(
    dag_id="sfumato_refresh",
    description="Publish the day's private map",
    # The day of a data interval is the day on which it begins: its run, at five the next morning, publishes that day.
    # A plain cron string would, in Airflow 3, date the run by its own day, of which there are no data yet.
    schedule=CronDataIntervalTimetable("0 5 * * *", timezone="UTC"),
    start_date=START,
    catchup=True,
    max_active_runs=1,
    tags=["sfumato", "privacy"],
) as dag:
    Refresh(
        task_id="refresh",
        bash_command=f"{SFUMATO} refresh --config {CONFIG} --date {{{{ data_interval_start | ds }}}}",
        skip_on_exit_code=None,
        retries=6,
        retry_delay=timedelta(hours=1),
        execution_timeout=timedelta(hours=6),
    )
