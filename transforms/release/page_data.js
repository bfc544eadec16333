"use strict";
/* The release's page. Parts: words and numbers, layers, colours, view, painting, pointer and keys, panel, report.
   Everything from the manifest enters the document as text, never as markup. */
(() => {
  const data = JSON.parse(document.getElementById("sfumato-data").textContent);
  const { manifest } = data;
  const { region } = manifest;
  const depth = manifest.grid.depth;
  const layers = data.layers;
  const $ = (id) => document.getElementById(id);
  document.documentElement.classList.add("live"); // before this, the style sheet shows only what needs no script
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // ---------------------------------------------------------------- words and numbers

  const get = (path, fallback = null) => {
    let value = manifest;
    for (const key of path.split(".")) value = value !== null && typeof value === "object" ? value[key] : undefined;
    return value ?? fallback;
  };
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const minus = (text) => text.replace(/^-/, "\u2212");
  const rounded = (value, digits) => minus(value.toLocaleString("en", { maximumFractionDigits: digits }));
  const significant = (value, digits = 3) => minus(value.toLocaleString("en", { maximumSignificantDigits: digits }));
  const whole = (value) => (isNumber(value) ? rounded(value, Math.abs(value) < 9.95 ? 1 : 0).replace(/^\u22120$/, "0") : "unknown");
  const large = (value) => (value >= 1e6 ? `${significant(value / 1e6)} million` : whole(value));
  const metres = (m) => (m >= 995 ? `${significant(m / 1000)} km` : m >= 1 ? `${significant(m)} m` : `${significant(m * 100)} cm`);
  const bytes = (bits) => {
    const b = bits / 8;
    return b >= 1e6 ? `${significant(b / 1e6)} MB` : b >= 1e4 ? `${significant(b / 1e3)} kB` : `${rounded(b, 0)} bytes`;
  };
  const percent = (share) => `${rounded(100 * share, share > 0.01 && share < 0.99 ? 0 : 1)}%`;
  const plural = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;
  const degrees = (value, digits, plus, less) => `${Math.abs(value).toFixed(digits)}° ${value < 0 ? less : plus}`;
  const place = (lon, lat, digits) => `${degrees(lat, digits, "N", "S")}, ${degrees(lon, digits, "E", "W")}`;

  /** An element from text and elements; attributes by name; no markup is ever parsed. */
  function h(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    for (const child of children.flat(9)) if (child !== null && child !== undefined && child !== false) element.append(child);
    return element;
  }

  // ---------------------------------------------------------------- layers

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

  for (const layer of layers) {
    const n = (layer.n = layer.level.length);
    layer.maxLevel = n ? layer.level[n - 1] : 0;
    layer.density = new Float64Array(n);
    layer.places = new Map();
    // The noise is a sum of one discrete Laplace variable a shard: its 95% point lies between 2.12 deviations
    // (one shard) and the normal law's 1.96; the second term is Cornish and Fisher's for the kurtosis 3 / shards.
    layer.margin = layer.stddev * (1.96 + 0.206 / Math.max(layer.shards - layer.shards_lost, 1));
    for (let i = 0; i < n; i++) {
      layer.density[i] = layer.area[i] ? layer.count[i] / squareKilometres(layer.area[i], (layer.y[i] + 0.5) / 2 ** layer.level[i]) : 0;
      layer.places.set(keyOf(layer.level[i], layer.x[i], layer.y[i]), i);
    }
  }

  /** Index of the deepest node that covers (u, v), both in 0..1 from the north-west, or -1. */
  function nodeAt(layer, u, v) {
    if (!(u >= 0 && u <= 1 && v >= 0 && v <= 1)) return -1;
    for (let level = layer.maxLevel; level >= 0; level--) {
      const side = 2 ** level;
      const x = Math.min(Math.floor(u * side), side - 1);
      const y = Math.min(Math.floor(v * side), side - 1);
      const i = layer.places.get(keyOf(level, x, y));
      if (i !== undefined) return i;
    }
    return -1;
  }

  function describe(layer, i) {
    const level = layer.level[i];
    const side = 2 ** level;
    return {
      cell_id: layer.cell_id[i], count: layer.count[i], stddev: layer.stddev, margin: layer.margin,
      lost: layer.count[i] <= layer.margin, density: layer.density[i], area: layer.area[i], level,
      km2: squareKilometres(layer.area[i], (layer.y[i] + 0.5) / side),
      x: layer.x[i], y: layer.y[i], share: layer.area[i] / 4 ** (depth - level),
      widthMetres: groundWidth / side, heightMetres: groundHeight / side,
    };
  }

  function lookup(lon, lat) {
    const i = nodeAt(layers[state.layer], (lon - region.west) / width, (region.north - lat) / height);
    return i < 0 ? null : describe(layers[state.layer], i);
  }

  // ---------------------------------------------------------------- colours

  const stops = data.palette.match(/.{6}/g).map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const colours = Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((part, c) => Math.round(part + (stops[low + 1][c] - part) * (at - low)));
  });
  const lighten = ([r, g, b]) => [r + 9, g + 8, b + 13].map((part) => Math.min(part, 255)); // zero is not the void around
  const greyed = ([r, g, b]) => {
    const grey = 0.3 * r + 0.55 * g + 0.15 * b;
    return [r, g, b].map((part, c) => Math.round((0.12 * part + 0.62 * grey) * 0.72 + [19, 18, 25][c]));
  };
  const BRIGHT = colours.map(lighten);
  const FADED = colours.map(greyed);
  const words = (palette) => Uint32Array.from(palette, ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
  const css = (palette) => palette.map(([r, g, b]) => `rgb(${r},${g},${b})`);
  const PAINT = { words: [words(BRIGHT), words(FADED)], css: [css(BRIGHT), css(FADED)] };

  // One scale for all sub-queries, set by the last, so that the slider compares like with like.
  const last = layers[layers.length - 1];
  const sure = Array.from(last.density).filter((d, i) => d > 0 && last.count[i] > last.margin).sort((a, b) => a - b);
  const topDensity = sure.length ? sure[Math.min(Math.floor(sure.length * 0.998), sure.length - 1)] : Math.max(...last.density, 1e-9);
  const knee = topDensity / 150; // below it the scale is linear, above it logarithmic
  const shadeOf = (density) => clamp(Math.log1p(Math.max(density, 0) / knee) / Math.log1p(topDensity / knee), 0, 1);
  for (const layer of layers) {
    layer.shade = Uint8Array.from(layer.density, (d) => Math.round(255 * shadeOf(d)));
    layer.lost = Uint8Array.from(layer.count, (c) => (c <= layer.margin ? 1 : 0));
  }
