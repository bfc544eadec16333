// Published cells as layers of the map, one a level. A layer also holds the coarser levels' cells, faded, beneath its own.

  const NOUNS = {
    page: "map", one: "cell", many: "cells", article: "a cell", level: "level", finest: String(depth),
    whose: layers.length > 1 ? "in the first level's cells" : "in the cells shown",
    rounds: "A round looked only inside the cells that the round before had published.",
  };
  // How the map draws these layers: `first` is the palette's colour for the least, `least` a cell's least width in pixels.
  const LOOK = { first: 72, least: 3, ground: "#191720", hatched: false, dropped: true, swatch: "#191720" };
  // Coarser cells lie beneath in terraces, the lighter the finer: where the rounds went, without a second scale of counts.
  const terraces = Array.from({ length: 256 }, (_, i) => [0x19, 0x17, 0x20].map((part, c) => Math.round(part + (([0x4a, 0x43, 0x58][c] - part) * i) / 255)));
  PAINT.words[1] = words(terraces);
  PAINT.css[1] = css(terraces);

  layers.forEach((layer, number) => {
    const own = { ...layer, n: layer.x.length };
    const beneath = number ? layers[number - 1] : null;
    const terrace = (level) => Math.round((255 * (layers.findIndex((one) => one.depth === level) + 1)) / Math.max(layers.length - 1, 1));
    const joined = (name) => [...(beneath ? beneath[name] : []), ...own[name]];
    layer.depth = own.level;
    layer.from = beneath ? beneath.n : 0; // where this level's own cells begin
    layer.n = layer.from + own.n;
    own.level = Array.from({ length: own.n }, () => layer.depth);
    own.area = own.level.map((level) => 4 ** (depth - level));
    own.density = own.count.map((count, i) => count / squareKilometres(own.area[i], (own.y[i] + 0.5) / 2 ** layer.depth));
    // Colours tell the cells of one level apart, so each level has its own scale: logarithmic, least to most.
    const ranked = own.density.filter((density) => density > 0).sort((a, b) => a - b);
    layer.low = ranked.length ? ranked[0] : 1;
    layer.top = ranked.length ? ranked[Math.min(Math.floor(ranked.length * 0.998), ranked.length - 1)] : 10;
    if (layer.top < layer.low * 1.01) layer.low = layer.top / 10;
    own.shade = own.density.map((density) => Math.round(LOOK.first + (255 - LOOK.first) * shareOf(layer, density)));
    for (const name of ["x", "y", "level", "area", "count", "stddev", "cell_id", "density", "shade"]) layer[name] = joined(name);
    if (beneath) layer.shade = [...beneath.level.map(terrace), ...own.shade];
    layer.lost = Uint8Array.from({ length: layer.n }, (_, i) => (i < layer.from ? 1 : 0));
    layer.maxLevel = layer.depth;
    layer.places = new Map(layer.level.map((level, i) => [keyOf(level, layer.x[i], layer.y[i]), i]));
  });
  function shareOf(layer, density) {
    return clamp(Math.log(Math.max(density, layer.low) / layer.low) / Math.log(layer.top / layer.low), 0, 1);
  }

  /** Round densities and where they stand on the shown level's scale, as [share, text], no two closer than `room`. */
  function legendTicks(room) {
    const layer = layers[state.layer];
    if (layer.n === layer.from) return [];
    const ticks = [];
    for (let power = Math.floor(Math.log10(layer.low)); power <= Math.log10(layer.top); power++) {
      for (const step of [1, 2, 5]) {
        const density = step * 10 ** power;
        const share = shareOf(layer, density);
        if (density >= layer.low && density < layer.top && share < 0.93 && (!ticks.length || share - ticks[ticks.length - 1][0] > room)) ticks.push([share, short(density)]);
      }
    }
    return ticks;
  }

  /** The cell of the shown level under a place, {level, x, y, i}; i is -1 where it was not published. Null outside. */
  function spotAt(layer, u, v) {
    if (!(u >= 0 && u <= 1 && v >= 0 && v <= 1)) return null;
    const side = 2 ** layer.depth;
    const [x, y] = [u, v].map((share) => Math.min(Math.floor(share * side), side - 1));
    const found = (cx, cy) => layer.places.get(keyOf(layer.depth, cx, cy)) ?? -1;
    let best = { level: layer.depth, x, y, i: found(x, y) };
    // Cells too small to point at, and so drawn larger: the nearest published one within some pixels.
    const wide = (size.fitW * view.scale) / side;
    if (best.i >= 0 || wide >= LOOK.least || layer.n >= WIDENED) return best;
    let nearest = (6 / wide) ** 2;
    for (let own = layer.from; own < layer.n; own++) {
      const apart = (layer.x[own] - x) ** 2 + (layer.y[own] - y) ** 2;
      if (apart > nearest) continue;
      nearest = apart;
      best = { level: layer.depth, x: layer.x[own], y: layer.y[own], i: own };
    }
    return best;
  }
  const listDigits = Math.max(placeDigits - 1, 2);

  /** What the map says of a cell: a value, its margin, and rows of facts. */
  function tipWords(layer, spot, lon, lat) {
    const { i, level, x, y } = spot;
    const rows = [["Cell", cellSize(level)], ["Place", place(...(i < 0 ? [lon, lat] : middleOf(level, x, y)), placeDigits)]];
    if (i >= 0) {
      return {
        value: `about ${whole(layer.count[i])} users`, margin: `\u00b1 ${whole(Z * layer.stddev[i])} at 95%, from the draw`,
        rows: [["Density", `${significant(layer.density[i])} per km\u00b2`], ["Name", `${layer.cell_id[i]}, level ${level}`], ...rows],
      };
    }
    const around = nodeAt(layer, (x + 0.5) / 2 ** level, (y + 0.5) / 2 ** level);
    return {
      value: isNumber(hiddenCount) ? `at most about ${whole(hiddenCount)} users` : "too few users to be shown",
      margin: "or nobody: not published",
      rows: [...(around < 0 ? [] : [["Around it", `about ${whole(layer.count[around])} users in the cell of level ${layer.level[around]}`]]), ...rows],
    };
  }
  function lookup(lon, lat) {
    const layer = layers[state.layer];
    const spot = spotAt(layer, (lon - region.west) / width, (region.north - lat) / height);
    return spot && (spot.i < 0 ? { ...spot, hidden: true } : { ...spot, hidden: false, cell_id: layer.cell_id[spot.i], count: layer.count[spot.i], stddev: layer.stddev[spot.i], density: layer.density[spot.i] });
  }
