"""Means, variances and moments of a number over users, in two rooms: `local` and `central`.

request           the options of `sfumato moments`
client_values     values of users as blocks
groups            public groups of users
statistic_kinds   statistics from means of quantities. A new statistic is one value
transform         what both rooms do first on Beam: `UserMoments` reads, bounds and admits users
local/            each user reports a bit: plan, transform (`PushBits`), release
central/          a curator adds up values: plan, transform (`SumMoments`), release
release, view     what both releases have in common, and the page
"""
