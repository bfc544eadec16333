// The model on this page: its parts, and answers to squares, as the library computes them.

  const { model } = data;
  const SIDE = model.side; // base cells along a side of the region; boxes and edges are in base cells
  const [regionWidth, regionHeight] = model.metres;

  const spanned = ({ x_edges: xs, y_edges: ys }) => {
    const [columns, rows] = [xs.length - 1, ys.length - 1];
    const all = (value) => Float64Array.from({ length: rows * columns }, (_, i) => value(i % columns, Math.floor(i / columns)));
    return { x0: all((x) => xs[x]), y0: all((_, y) => ys[y]), x1: all((x) => xs[x + 1]), y1: all((_, y) => ys[y + 1]) };
  };
  /** The rectangles that the map is painted in: x0, y0, x1, y1, and users of at least 0. */
  const parts = model.x0 ? { x0: model.x0, y0: model.y0, x1: model.x1, y1: model.y1 } : spanned(model);
  parts.n = parts.x0.length;
  parts.users = Float64Array.from(model.shown ?? model.users, (users) => Math.max(users, 0));
  const PART_KM2 = (regionWidth * regionHeight) / SIDE ** 2 / 1e6; // a base cell
  parts.density = parts.users.map((users, i) => users / ((parts.x1[i] - parts.x0[i]) * (parts.y1[i] - parts.y0[i]) * PART_KM2));

  /** The strips between edges that low..high covers: the first, and the share of each that is covered. */
  function covered(edges, low, high) {
    let [first, beyond] = [0, edges.length - 1];
    while (beyond - first > 1) {
      const middle = (first + beyond) >> 1;
      if (edges[middle] <= low) first = middle;
      else beyond = middle;
    }
    const shares = [];
    for (let i = first; i < edges.length - 1 && (i === first || edges[i] < high); i++) {
      shares.push((Math.min(high, edges[i + 1]) - Math.max(low, edges[i])) / (edges[i + 1] - edges[i]));
    }
    return [first, shares];
  }

  /** Calls visit(cell, share) for every cell of a grid that a box covers some of. */
  function eachCovered(box, visit) {
    const [left, across] = covered(model.x_edges, box.x0, box.x1);
    const [top, down] = covered(model.y_edges, box.y0, box.y1);
    const columns = model.x_edges.length - 1;
    down.forEach((tall, row) => across.forEach((wide, column) => visit((top + row) * columns + left + column, wide * tall)));
  }

  /** What the users in a box's middle add to the variance, as `centre_variance` has it. cell: that holds the middle. */
  function centreVariance(box, cell, users, clumps) {
    const overlap = (low, high) => Math.max(Math.min(box[high], cell[high]) - Math.max(box[low], cell[low]), 0);
    const share = clamp((overlap("x0", "x1") * overlap("y0", "y1")) / areaOf(cell), 1e-12, 1);
    const inside = Math.max(clumps, model.least_clumping);
    const [a, b] = [Math.log2(1 + inside), Math.log2(1 + 3 * inside)];
    const uneven = share ** (2 - b) - 2 * share ** (2 - a) + share ** 2 - clumps * (share - share ** 2);
    return 1 + Math.max(users, 0) ** 2 * Math.max(uneven, 0);
  }
  const partAt = (i) => ({ x0: parts.x0[i], y0: parts.y0[i], x1: parts.x1[i], y1: parts.y1[i] });

  /** By kind of model, the answer {users, variance} to a box within the region. */
  const ASK = {
    grid(box) {
      let [users, variance] = [0, 0];
      eachCovered(box, (i, share) => {
        const uneven = Math.max(model.users[i], 0) + model.clumping * Math.max(model.users[i] ** 2 - model.noise, 0);
        users += model.users[i] * share;
        variance += model.noise * share ** 2 + uneven * (share - share ** 2);
      });
      const [x, y] = [(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2];
      const middle = covered(model.y_edges, y, y)[0] * (model.x_edges.length - 1) + covered(model.x_edges, x, x)[0];
      variance += centreVariance(box, partAt(middle), model.users[middle], model.clumping);
      return { users, variance };
    },
    partition(box) {
      let [users, variance] = [0, 0];
      const [x, y] = [(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2];
      for (let i = 0; i < parts.n; i++) {
        const wide = Math.min(box.x1, parts.x1[i]) - Math.max(box.x0, parts.x0[i]);
        const tall = Math.min(box.y1, parts.y1[i]) - Math.max(box.y0, parts.y0[i]);
        if (wide <= 0 || tall <= 0) continue;
        const share = (wide * tall) / ((parts.x1[i] - parts.x0[i]) * (parts.y1[i] - parts.y0[i]));
        users += model.users[i] * share; // rectangles below 0 count as such, but no answer is
        variance += model.variance[i] * share;
        if (parts.x0[i] <= x && x < parts.x1[i] && parts.y0[i] <= y && y < parts.y1[i]) {
          variance += centreVariance(box, partAt(i), model.users[i], 0);
        }
      }
      return { users, variance };
    },
    raster(box) {
      let users = 0;
      eachCovered(box, (i, share) => { users += parts.users[i] * share; });
      return { users, variance: rasterError(box) ** 2 };
    },
  };

  /** The model's own error of squares as large as a box, between the places and sizes at which it was asked. */
  function rasterError(box) {
    const { sizes, places, stddev } = model.errors;
    const side = Math.sqrt((box.x1 - box.x0) * (box.y1 - box.y0) * PART_KM2) * 1000;
    const between = (at, last) => {
      const low = Math.min(Math.floor(clamp(at, 0, last)), Math.max(last - 1, 0));
      return [low, Math.min(low + 1, last), clamp(at, 0, last) - low];
    };
    const step = sizes.length > 1 ? Math.log(sizes[1] / sizes[0]) : 1;
    const [x, y] = [box.x0 + box.x1, box.y0 + box.y1].map((sum) => between((sum / 2 / SIDE) * places - 0.5, places - 1));
    const z = between(Math.log(Math.max(side, sizes[0]) / sizes[0]) / step, sizes.length - 1);
    let mean = 0;
    for (const a of [0, 1]) for (const b of [0, 1]) for (const c of [0, 1]) {
      const weight = (a ? x[2] : 1 - x[2]) * (b ? y[2] : 1 - y[2]) * (c ? z[2] : 1 - z[2]);
      mean += weight * stddev[(z[c] * places + y[b]) * places + x[a]];
    }
    return mean;
  }

  /** A square as a box, which may reach beyond the region. */
  function boxOf({ x, y, size }) {
    const [u, v] = [(x - region.west) * (SIDE / width), (region.north - y) * (SIDE / height)];
    const [wide, tall] = [(size / regionWidth) * SIDE, (size / regionHeight) * SIDE];
    return { x0: u - wide / 2, y0: v - tall / 2, x1: u + wide / 2, y1: v + tall / 2 };
  }
  const areaOf = ({ x0, y0, x1, y1 }) => (x1 - x0) * (y1 - y0);
  const withinRegion = (box) => Object.fromEntries(Object.entries(box).map(([name, edge]) => [name, clamp(edge, 0, SIDE)]));
  /** The answer to a square {x, y, size}, of the part inside the region: {users, stddev, inside}. */
  function ask(square) {
    const box = boxOf(square);
    const within = withinRegion(box);
    const inside = areaOf(within) / areaOf(box);
    if (!(inside > 0)) return { users: 0, stddev: 0, inside: 0 };
    const { users, variance } = ASK[model.kind](within);
    return { users: Math.max(users, 0), stddev: Math.sqrt(Math.max(variance, 0)), inside };
  }

  // Where noise may be all there is: judged by part, as far as the model has parts.
  const errorOf = { grid: () => Math.sqrt(model.noise), partition: (i) => Math.sqrt(model.variance[i]), raster: () => 0, network: () => 0 }[model.kind];
  parts.lost = Uint8Array.from(parts.users, (users, i) => (errorOf(i) > 0 && users <= 1.96 * errorOf(i) ? 1 : 0));
