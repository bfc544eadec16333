"""Bit pushing (paper 002): each user reports one bit of their value, by randomised response.

plan             queries and their privacy, with the error from public figures: `MomentsPlan`
quantities       the questions: fixed-point codes of values, their squares, products and logarithms
allocation       the number of users that each bit is queried from
tally            users' reports on a query: randomised response, and noise on the tallies
protocol         public tallies -> the next queries, or the estimates: `MomentsState`
bit_means, threshold_means   means with intervals, from tallies
transform        `PushBits`: from paths of logs to the last state
release          that state -> the files of a release
"""
