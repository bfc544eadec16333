"""Public zones: polygons of a file, the zone of a point, counts of users by zone and level."""
