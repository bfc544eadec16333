"""Quantiles and range counts of a number over users. `transforms/histogram` has the samples of users.

request             the options of `sfumato quantiles`
plan                the budget of a trusted curator, and the expected error: `QuantilesPlan`
curve               distribution functions from samples, with bands, and their quantiles
exponential_draw    one draw of the exponential mechanism
private_quantiles   the draws, or a hierarchy of noisy counts, as a published distribution
transform           `CentralQuantiles`, `InteractiveQuantiles`: from paths of logs to what is published
release, view       a distribution, by a curator or by samples, as files -> the page
"""
