"""Origin-destination flows with a trusted curator's noise: trips, an adaptive tree of pairs, its files and page."""
