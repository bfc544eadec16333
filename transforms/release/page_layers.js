// The heatmap's layers, a sub-query's each or the map made of them all: noise, density, the scale of users, and facts on
// a cell. What the colours show is chosen in page_colours.js.

  // How the map draws these layers: `first` is the palette's first colour, `least` a cell's least width in pixels, `room`
  // the pixels that a narrow map leaves to the key below it.
  const LOOK = { first: 0, least: 0, ground: null, hatched: true, room: layers.some((layer) => layer.rates) ? 128 : 100 };

  // The noise is a sum of one discrete Laplace variable a shard: its 95% point lies between 2.12 deviations
  // (one shard) and the normal law's 1.96; the second term is Cornish and Fisher's for the kurtosis 3 / shards.
  const marginOf = (stddev, live) => stddev * (1.96 + 0.206 / Math.max(live, 1));

  for (const layer of layers) {
    const n = (layer.n = layer.level.length);
    // A posterior's counts are means, and its deviations what all answers leave open, not noise in an answer.
    layer.posterior = layer.combined && get("parameters.estimator") === "bayes";
    layer.fitted = layer.combined && layer.count.every((count) => count >= 0); // its faintest cell is still a guess, not noise
    layer.maxLevel = n ? layer.level[n - 1] : 0;
    layer.density = new Float64Array(n);
    layer.places = new Map();
    layer.marginOf = (stddev) => (layer.posterior ? 1.96 * stddev : marginOf(stddev, layer.shards - layer.shards_lost));
    layer.margin = layer.marginOf(layer.stddev);
    for (let i = 0; i < n; i++) {
      layer.density[i] = layer.area[i] ? layer.count[i] / squareKilometres(layer.area[i], (layer.y[i] + 0.5) / 2 ** layer.level[i]) : 0;
      layer.places.set(keyOf(layer.level[i], layer.x[i], layer.y[i]), i);
    }
  }

  const stddevOf = (layer, i) => (layer.deviations ? layer.deviations[i] : layer.stddev);
  const marginAt = (layer, i) => layer.marginOf(stddevOf(layer, i));
  const isLost = (layer, i) => layer.count[i] <= marginAt(layer, i);

  function describe(layer, i) {
    const level = layer.level[i];
    const side = 2 ** level;
    return {
      cell_id: layer.cell_id[i], count: layer.count[i], stddev: stddevOf(layer, i), margin: marginAt(layer, i),
      low: layer.users_low ? layer.users_low[i] : null, high: layer.users_high ? layer.users_high[i] : null,
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

  // One scale for all layers, made for the last (page_layer.py), so that the slider compares like with like.
  const last = layers[layers.length - 1];
  const topDensity = data.top;
  const clipped = last.density.some((density) => density > 1.001 * topDensity);
  const knee = topDensity / 150; // below it the scale is linear, above it logarithmic
  const shadeOf = (density) => clamp(Math.log1p(Math.max(density, 0) / knee) / Math.log1p(topDensity / knee), 0, 1);

  /** Round densities and where they stand on the scale, as [share, text], no two closer than `room`. */
  function densityTicks(room) {
    const ticks = [[0, "0"]];
    const end = clipped ? 1 - 1.5 * room : 0.95;
    for (let power = Math.floor(Math.log10(knee)); power <= Math.log10(topDensity); power++) {
      for (const density of [10 ** power, 3 * 10 ** power]) {
        const share = shadeOf(density);
        if (density < topDensity && share < end && share - ticks[ticks.length - 1][0] > room) ticks.push([share, significant(density)]);
      }
    }
    return clipped ? [...ticks, [1, `≥ ${significant(topDensity, 2)}`]] : ticks;
  }
