"""The TypeScript client of phones in real browsers."""

from __future__ import annotations

import json
from pathlib import Path

from sfumato.transforms.split.reports import make_reports
from tests.browser.conftest import Open
from tests.phones import bundle
from tests.two_servers import City


def test_a_browser_makes_the_python_clients_report(opened: Open, tmp_path: Path) -> None:
    script = bundle(tmp_path / "client").read_text()
    page = tmp_path / "app.html"
    more = "globalThis.report = report; document.documentElement.classList.add('live');"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><title>App</title><script type="module">{script}{more}</script>'
    )
    task, randomness = City.new(tmp_path).task, bytes(range(208))
    expected = make_reports(task, [task.measurement((3.05, 1.07))], task.start, randomness)
    tab = opened(page)
    file, place = f"new TextEncoder().encode({json.dumps(task.text)})", "{longitude: 3.05, latitude: 1.07}"
    options = f"{{now: {task.start}, randomness: Uint8Array.from({{length: 208}}, (_, i) => i)}}"
    run = f"report({file}, {place}, sessionStorage, {options})"
    assert bytes(tab.run(f"{run}.then(found => Array.from(found))")) == expected
    assert tab.run(f"{run}.catch(error => error.option)") == "task"  # the storage has it
