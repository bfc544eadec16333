// The map's ground: what the region measures, and the colours.

  const { region } = manifest;
  const depth = manifest.grid.depth;
  const layers = data.layers;
  const width = region.east - region.west; // degrees
  const height = region.north - region.south;
  const cosine = Math.max(Math.cos((((region.north + region.south) / 2) * Math.PI) / 180), 0.01);
  const groundWidth = width * METRES_PER_DEGREE * cosine; // metres, at the middle latitude
  const groundHeight = height * METRES_PER_DEGREE;
  const RASTER_BITS = 11; // a layer's bitmap is at most 2^11 pixels wide
  const keyOf = (level, x, y) => (x * 1048576 + y) * 32 + level;

  /** Square kilometres of `area` finest cells round the row at v (0 north, 1 south). */
  function squareKilometres(area, v) {
    const latitude = ((region.north - v * height) * Math.PI) / 180;
    const cell = ((width * height) / 4 ** depth) * METRES_PER_DEGREE ** 2 * Math.max(Math.cos(latitude), 1e-6);
    return (area * cell) / 1e6;
  }

  /** Longitude and latitude of a cell's middle; how wide and high a level's cells are. */
  const middleOf = (level, x, y) => [region.west + ((x + 0.5) / 2 ** level) * width, region.north - ((y + 0.5) / 2 ** level) * height];
  const cellSize = (level) => `${metres(groundWidth / 2 ** level)} \u00d7 ${metres(groundHeight / 2 ** level)}`;
  const placeDigits = clamp(Math.ceil(Math.log10(2 ** depth / Math.min(width, height))) + 1, 2, 6);

  // ---------------------------------------------------------------- colours

  const colours = coloursOf(data.palette);
  const words = (palette) => Uint32Array.from(palette, ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
  const css = (palette) => palette.map(([r, g, b]) => `rgb(${r},${g},${b})`);
  /** What the map paints with: one palette for what is shown plainly, the next for what is faded; see `sheetOf`. */
  const paintOf = (...palettes) => ({ words: palettes.map(words), css: palettes.map(css) });
  const PAINT = paintOf(colours.map(lighten), colours.map(greyed));
