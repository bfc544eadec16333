// The heatmap's layers, a sub-query's each or the map made of them all: noise, density, the scale of colours, and words
// for a cell.

  // How the map draws these layers: `first` is the palette's colour for nothing, `least` a cell's least width in pixels.
  const LOOK = { first: 0, least: 0, ground: null, hatched: true, swatch: `repeating-linear-gradient(135deg, ${PAINT.css[1][70]} 0 3px, #5b5763 3px 4px)` };

  // The noise is a sum of one discrete Laplace variable a shard: its 95% point lies between 2.12 deviations
  // (one shard) and the normal law's 1.96; the second term is Cornish and Fisher's for the kurtosis 3 / shards.
  const marginOf = (stddev, live) => stddev * (1.96 + 0.206 / Math.max(live, 1));

  for (const layer of layers) {
    const n = (layer.n = layer.level.length);
    layer.maxLevel = n ? layer.level[n - 1] : 0;
    layer.density = new Float64Array(n);
    layer.places = new Map();
    layer.margin = marginOf(layer.stddev, layer.shards - layer.shards_lost);
    for (let i = 0; i < n; i++) {
      layer.density[i] = layer.area[i] ? layer.count[i] / squareKilometres(layer.area[i], (layer.y[i] + 0.5) / 2 ** layer.level[i]) : 0;
      layer.places.set(keyOf(layer.level[i], layer.x[i], layer.y[i]), i);
    }
  }

  const stddevOf = (layer, i) => (layer.deviations ? layer.deviations[i] : layer.stddev);
  const isLost = (layer, i) => layer.count[i] <= marginOf(stddevOf(layer, i), layer.shards - layer.shards_lost);

  function describe(layer, i) {
    const level = layer.level[i];
    const side = 2 ** level;
    const stddev = stddevOf(layer, i);
    return {
      cell_id: layer.cell_id[i], count: layer.count[i], stddev, margin: marginOf(stddev, layer.shards - layer.shards_lost),
      lost: isLost(layer, i), density: layer.density[i], area: layer.area[i], level,
      km2: squareKilometres(layer.area[i], (layer.y[i] + 0.5) / side),
      x: layer.x[i], y: layer.y[i], share: layer.area[i] / 4 ** (depth - level),
      widthMetres: groundWidth / side, heightMetres: groundHeight / side,
    };
  }

  /** The node under a place, {level, x, y, i}, or null. */
  function spotAt(layer, u, v) {
    const i = nodeAt(layer, u, v);
    return i < 0 ? null : { level: layer.level[i], x: layer.x[i], y: layer.y[i], i };
  }
  function lookup(lon, lat) {
    const i = nodeAt(layers[state.layer], (lon - region.west) / width, (region.north - lat) / height);
    return i < 0 ? null : describe(layers[state.layer], i);
  }

  // One scale for all layers, set by the last, so that the slider compares like with like.
  const last = layers[layers.length - 1];
  const sure = Array.from(last.density).filter((d, i) => d > 0 && !isLost(last, i)).sort((a, b) => a - b);
  const topDensity = sure.length ? sure[Math.min(Math.floor(sure.length * 0.998), sure.length - 1)] : Math.max(...last.density, 1e-9);
  const knee = topDensity / 150; // below it the scale is linear, above it logarithmic
  const shadeOf = (density) => clamp(Math.log1p(Math.max(density, 0) / knee) / Math.log1p(topDensity / knee), 0, 1);
  for (const layer of layers) {
    layer.shade = Uint8Array.from(layer.density, (d) => Math.round(255 * shadeOf(d)));
    layer.lost = Uint8Array.from(layer.count, (_, i) => (isLost(layer, i) ? 1 : 0));
  }

  /** Round densities and where they stand on the scale, as [share, text], no two closer than `room`. */
  function legendTicks(room) {
    const ticks = [[0, "0"]];
    for (let power = Math.floor(Math.log10(knee)); power <= Math.log10(topDensity); power++) {
      for (const density of [10 ** power, 3 * 10 ** power]) {
        const share = shadeOf(density);
        if (density < topDensity && share < 0.95 && share - ticks[ticks.length - 1][0] > room) ticks.push([share, significant(density)]);
      }
    }
    return ticks;
  }

  // ---------------------------------------------------------------- the value under the pointer

  /** What the map says of the node at a place: a value, its margin, and rows of facts; null: nothing. */
  function tipWords(layer, spot, lon, lat) {
    const cell = describe(layer, spot.i);
    const users = (value) => (layer.deviations && cell.margin < 1 ? significant(value, 2) : whole(value));
    const share = cell.share < 0.9995 ? ` less its finer cells, ${percent(cell.share)} of it` : "";
    const dropped = layer.combined && cell.count === 0 ? SAY.dropped() : null; // at most how many users, where that is known
    const most = Math.max(dropped ?? cell.count + cell.margin, 0);
    const why = dropped === null ? `not told apart from noise: ${users(cell.count)} ± ${users(cell.margin)} at 95%` : "not kept: not among the largest noisy counts";
    return {
      value: cell.lost ? `no more than about ${users(most)} users` : `about ${users(cell.count)} users`,
      margin: cell.lost ? why : `± ${users(cell.margin)} at 95%, ${SAY.source}`,
      rows: [
        ["Density", cell.lost ? `below about ${significant(most / cell.km2)} per km²` : `${significant(cell.density)} per km²`],
        ["Cell", `${metres(cell.widthMetres)} × ${metres(cell.heightMetres)}${share}`],
        ["Name", `${cell.cell_id}, depth ${cell.level} of ${depth}`],
        ["Place", place(lon, lat, placeDigits)],
      ],
    };
  }
