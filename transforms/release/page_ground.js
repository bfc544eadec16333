// The map's ground: what the region measures, how places and lengths are written, and the colours.

  const { region } = manifest;
  const depth = manifest.grid.depth;
  const layers = data.layers;
  const METRES_PER_DEGREE = (6371008.8 * Math.PI) / 180;
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

  const metres = (m) => (m >= 995 ? `${significant(m / 1000)} km` : m >= 1 ? `${significant(m)} m` : `${significant(m * 100)} cm`);
  const degrees = (value, digits, plus, less) => `${Math.abs(value).toFixed(digits)}° ${value < 0 ? less : plus}`;
  const place = (lon, lat, digits) => `${degrees(lat, digits, "N", "S")}, ${degrees(lon, digits, "E", "W")}`;
  const placeDigits = clamp(Math.ceil(Math.log10(2 ** depth / Math.min(width, height))) + 1, 2, 6);

  // ---------------------------------------------------------------- colours

  /** 256 colours, [red, green, blue], from a palette's text. */
  function coloursOf(text) {
    const stops = text.match(/.{6}/g).map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    return Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1);
      const low = Math.min(Math.floor(at), stops.length - 2);
      return stops[low].map((part, c) => Math.round(part + (stops[low + 1][c] - part) * (at - low)));
    });
  }
  const colours = coloursOf(data.palette);
  const lighten = ([r, g, b]) => [r + 9, g + 8, b + 13].map((part) => Math.min(part, 255)); // zero is not the void around
  const greyed = ([r, g, b]) => {
    const grey = 0.3 * r + 0.55 * g + 0.15 * b;
    return [r, g, b].map((part, c) => Math.round((0.12 * part + 0.62 * grey) * 0.72 + [19, 18, 25][c]));
  };
  const words = (palette) => Uint32Array.from(palette, ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
  const css = (palette) => palette.map(([r, g, b]) => `rgb(${r},${g},${b})`);
  /** What the map paints with: one palette for what is shown plainly, the next for what is faded; see `sheetOf`. */
  const paintOf = (...palettes) => ({ words: palettes.map(words), css: palettes.map(css) });
  const PAINT = paintOf(colours.map(lighten), colours.map(greyed));
