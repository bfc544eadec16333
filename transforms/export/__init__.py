"""Published releases as files of other tools: rasters, vectors, tables and catalogue items. No data and no noise."""
