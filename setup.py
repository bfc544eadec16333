"""Installs the project's folders under one import package, `sfumato`.

The folders are at the top level of the repository. A name as generic as `transforms` must not land in a user's
environment or on a Dataflow worker, so each folder is mapped to `sfumato.<folder>`, and `api` to `sfumato` itself. A
folder with the name `sfumato` would hide the installed package from a Python that runs in the checkout. The folders in
runner_configs/ (schedules, the Flex template) are for users of the repository and are not installed.
"""

from setuptools import find_packages, setup

FOLDERS = ["schemas", "transforms", "pipelines", "runner_configs"]


def packages() -> list[str]:
    found = ["sfumato"]
    for folder in FOLDERS:
        found.append(f"sfumato.{folder}")
        found.extend(f"sfumato.{folder}.{name}" for name in find_packages(folder))
    return found


setup(
    packages=packages(),
    include_package_data=False,  # else what MANIFEST.in adds to the source archive counts as undeclared packages
    package_dir={"sfumato": "api"} | {f"sfumato.{folder}": folder for folder in FOLDERS},
    package_data={
        "sfumato": ["py.typed", "beam_providers.yaml"],
        "sfumato.runner_configs": ["*.yaml"],
        "sfumato.schemas": ["py.typed", "*.json.gz"],
        "sfumato.transforms": ["py.typed"],
        "sfumato.transforms.report": ["*.j2", "bundle/*"],
        "sfumato.pipelines": ["py.typed"],
    },
)
