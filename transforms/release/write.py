"""Publishing as the last stage of a job, so that a job that nobody waits for still publishes."""

from __future__ import annotations

import apache_beam as beam

from sfumato.transforms.release.store import publish


class WriteRelease(beam.PTransform):
    """A singleton {file name: content} -> the published folder's path. Safe to retry."""

    def __init__(self, output: str, release_id: str, overwrite: bool):
        super().__init__()
        self._output = output
        self._release_id = release_id
        self._overwrite = overwrite

    def expand(self, files: beam.PCollection) -> beam.PCollection:
        def write(content: dict[str, bytes], output: str, release_id: str, overwrite: bool) -> str:
            publish(output, content, release_id, overwrite)
            return output

        return files | "Publish" >> beam.Map(write, self._output, self._release_id, self._overwrite)
