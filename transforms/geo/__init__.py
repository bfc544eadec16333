"""Geographic features: their files, public zones, and the cells of indexes.

feature_files, geoparquet   polygons, lines and points of a file, with their properties
cell_indexes                cells of H3 and quadkeys
zone_file                   polygons or points of a file, or the cells of an index, with nested levels: `Zones`
zone_raster                 the zone of a point: `ZoneLocator`
zone_options                the options of jobs that take zones
"""
