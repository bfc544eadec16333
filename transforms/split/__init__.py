"""Two servers, neither trusted with a location: devices prove and share what they report (Prio3).

field128    arithmetic modulo p in NumPy arrays
circuits    what a client proves, and how two aggregators check it: `Histogram`, `L1BoundSum`
prio3       shares, verification and sums of batches of reports
hpke        encryption to an aggregator or a collector
task        what all parties agree on, in a public file
reports     what devices send, and what the two aggregators exchange about it
parties     the two aggregators and the collector, by their keys
blocks      files of reports, each counted at most once
aggregate   an aggregator's work on a task, in Beam
collect     the sums of both aggregators as a release
answered    what a device does with a task, and keeps, so that it answers each once

The drafts: draft-irtf-cfrg-vdaf-20, draft-ietf-ppm-l1-bound-sum, draft-ietf-ppm-dap-18.
"""
