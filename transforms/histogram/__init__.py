"""How many users hold an item: by sample and threshold without noise (paper 004), or of all users with noise.

request            the options of `sfumato histogram` and `hotspots`
item_encoding      what is counted: cells, values of a column, or bins of numbers
plan, accountant   the budget of a sample: its rate and threshold, by the exact guarantee: `SamplePlan`
user_sample, sampling_round   keyed samples of users, and what a threshold publishes of their counts
central_counts, count_noise   the same of all users: `CentralCountPlan`, and the noise that hides least
transform          `TrieHeavyHitters`, `NoisyItems`: from paths of logs to published counts
release            published counts -> the files of a release
view, central_counts_view     those files -> the page, of a sample and of noisy counts
"""
