// Networks that read the noisy counts around a square: the same sums as the library's networks/features.py and local.py.

  if (model.kind === "network") {
    const [columns, rows] = [model.x_edges.length - 1, model.y_edges.length - 1];
    const sums = new Float64Array((columns + 1) * (rows + 1)); // of all that was counted north-west of a corner
    for (let row = 0; row < rows; row++) {
      let along = 0;
      for (let column = 0; column < columns; column++) {
        along += model.users[row * columns + column];
        sums[(row + 1) * (columns + 1) + column + 1] = sums[row * (columns + 1) + column + 1] + along;
      }
    }
    /** The strip that a place lies in, and how far into it. */
    const locate = (edges, at) => {
      const inside = clamp(at, 0, SIDE);
      const [strip] = covered(edges, inside, inside);
      return [strip, (inside - edges[strip]) / (edges[strip + 1] - edges[strip])];
    };
    const between = (a, b, share) => a * (1 - share) + b * share;
    const corner = ([row, down], [column, across]) => {
      const at = row * (columns + 1) + column;
      const below = at + columns + 1;
      return between(between(sums[at], sums[at + 1], across), between(sums[below], sums[below + 1], across), down);
    };
    const counted = ({ x0, y0, x1, y1 }) => {
      const [left, right] = [locate(model.x_edges, x0), locate(model.x_edges, x1)];
      const [top, bottom] = [locate(model.y_edges, y0), locate(model.y_edges, y1)];
      return corner(bottom, right) - corner(top, right) - corner(bottom, left) + corner(top, left);
    };
    const about = (x, y, wide, tall) => ({ x0: x - wide / 2, y0: y - tall / 2, x1: x + wide / 2, y1: y + tall / 2 });
    const swish = (value) => value / (1 + Math.exp(-value));
    /** inputs times a matrix that is held row by row, plus the bias. */
    const layer = (inputs, weights, bias) => bias.map((sum, to) => inputs.reduce((all, value, from) => all + value * weights[from * bias.length + to], sum));
    const cell = [SIDE / columns, SIDE / rows];
    const CELL = cell[0] * cell[1];
    const rest = (value) => value - Math.floor(value);

    /** Users of a box of a size that networks were trained for, and the square of the error to expect. */
    function read({ x0, y0, x1, y1 }) {
      const [x, y, wide, tall] = [(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0];
      const seen = model.around.map(([dx, dy, w, h]) => {
        const noise = Math.sqrt(model.noise * (1 + (w * h * wide * tall) / CELL));
        return [counted(about(x + dx * wide, y + dy * tall, w * wide, h * tall)), noise];
      });
      const inputs = seen.map(([count, noise]) => Math.asinh(count / noise));
      inputs.push(Math.log((wide * tall) / CELL) / 2, Math.log(Math.sqrt(model.noise) / model.smoothing), rest(x / cell[0]), rest(y / cell[1]));
      const [own, deviation] = seen[0];
      let [users, variance] = [0, 0];
      for (const net of model.networks) {
        const hidden = layer(layer(inputs, net.w1, net.b1).map(swish), net.w2, net.b2).map(swish);
        const [gate, correction] = layer(hidden, net.w3, net.b3);
        const [logError] = layer(hidden, net.w4, net.b4);
        users += Math.max(own / (1 + Math.exp(-gate)) + correction * deviation, 0) / model.networks.length;
        variance += (Math.exp(logError) * deviation) ** 2 / model.networks.length;
      }
      return { users, variance };
    }

    ASK.network = (box) => {
      const area = areaOf(box);
      if (area > model.high[0] * model.high[1] * 1.05) return ASK.grid(box); // larger than they were trained for
      const small = clamp(Math.sqrt(area / (model.low[0] * model.low[1])), 1e-9, 1); // smaller: its share, by area
      const { users, variance } = read(about((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2, (box.x1 - box.x0) / small, (box.y1 - box.y0) / small));
      return { users: users * small ** 2, variance: variance * small ** 2 + 1 };
    };
  }
